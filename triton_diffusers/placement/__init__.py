# SPDX-License-Identifier: Apache-2.0
"""Where the weights of a pipeline live, and whether they fit."""

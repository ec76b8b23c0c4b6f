# SPDX-License-Identifier: Apache-2.0
"""Videos that are asked for now and fetched later: queued, run, stored, removed."""

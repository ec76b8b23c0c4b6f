# SPDX-License-Identifier: Apache-2.0
"""The fields and files of a request -> the keywords of a call of its model."""

# SPDX-License-Identifier: Apache-2.0
"""Entries of a model repository: config.pbtxt and 1/model.py, written, read back and found."""

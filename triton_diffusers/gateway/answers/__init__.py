# SPDX-License-Identifier: Apache-2.0
"""Answers that are more than JSON: files, and streams of events."""

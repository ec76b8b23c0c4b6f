# SPDX-License-Identifier: Apache-2.0
"""What an entry sets: its load-time options, and their text in config.pbtxt."""

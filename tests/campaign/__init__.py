# SPDX-License-Identifier: Apache-2.0
"""Campaigns against real servers: kills, stalls, floods and fuzz (scripts/campaign.py)."""

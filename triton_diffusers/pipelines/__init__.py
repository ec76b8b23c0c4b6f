# SPDX-License-Identifier: Apache-2.0
"""What diffusers' pipelines are: their classes, signatures, files, components and failures."""

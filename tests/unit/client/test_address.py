# SPDX-License-Identifier: Apache-2.0
"""Addresses, and what a client says when it is made or used in the wrong place."""

import asyncio
import re

import pytest

from triton_diffusers.client import (
    AsyncDiffusersClient,
    DiffusersClient,
    InvalidRequest,
    ServerUnavailable,
)
from triton_diffusers.client.address import PROTOCOLS, read_address


def url_of(url, protocol, ssl=False):
    return read_address(url, protocol, ssl, None, None).url


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("localhost", "grpc", "localhost:8001"),
        ("localhost", "http", "localhost:8000"),
        ("http://localhost", "http", "localhost:8000"),
        ("http://localhost:9000/", "http", "localhost:9000"),
        ("gateway/triton", "http", "gateway:8000/triton"),
        ("https://gateway/triton", "http", "gateway:443/triton"),
        ("grpcs://gateway", "grpc", "gateway:443"),
        ("[::1]", "grpc", "[::1]:8001"),
        ("[::1]:5", "grpc", "[::1]:5"),
        ("unix:/tmp/socket", "grpc", "unix:/tmp/socket"),
        ("10.0.0.1:5", "grpc", "10.0.0.1:5"),
    ],
)
def test_an_address_without_a_port_means_the_default_port(url, protocol, expected):
    assert url_of(url, protocol) == expected


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("http://localhost:8000", "grpc", "'localhost:8001' (the gRPC port), or use protocol="),
        ("https://host/path", "grpc", "'host:8001' (the gRPC port), or use protocol='http'."),
        ("grpc://[::1]:8001", "http", "'[::1]:8000' (the HTTP port), or use protocol='grpc'."),
        ("ftp://host", "http", "write 'host:8000' (the HTTP port)."),
    ],
)
def test_a_scheme_that_does_not_fit_says_what_to_write(url, protocol, expected):
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        url_of(url, protocol)


def test_the_asyncio_client_speaks_grpc_only():
    with pytest.raises(InvalidRequest, match=r"speaks gRPC only.*8001"):
        AsyncDiffusersClient("localhost:8000", "demo", protocol="http")


def test_the_asyncio_client_is_made_inside_a_loop():
    with pytest.raises(InvalidRequest, match="outside a running event loop"):
        AsyncDiffusersClient("localhost", "demo")

    async def inside():
        await AsyncDiffusersClient("localhost", "demo", protocol="grpc").close()

    asyncio.run(inside())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_closed_client_says_so(protocol):
    client = DiffusersClient("localhost:1", "demo", protocol)
    client.close()
    with pytest.raises(ServerUnavailable, match="the client is closed"):
        client.generate(prompt="a")
    client.close()

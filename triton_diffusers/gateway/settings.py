# SPDX-License-Identifier: Apache-2.0
"""What the operator sets: options of `builder gateway`, or TRITON_DIFFUSERS_GATEWAY_* variables."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MIB = 2**20
LONGEST_S = 10**9
"""Some thirty years: times in microseconds, and what is added to a clock, stay numbers."""

ChatContent = Literal["list", "images", "markdown"]
"""What `content` of a chat's answer is: the pictures as parts, an empty text, or Markdown."""

Listed = Annotated[tuple[str, ...], NoDecode]
"""Several texts; in a variable they are separated by commas."""


class Settings(BaseSettings):
    """The gateway's settings. Each is also the variable TRITON_DIFFUSERS_GATEWAY_NAME."""

    model_config = SettingsConfigDict(
        env_prefix="TRITON_DIFFUSERS_GATEWAY_", extra="forbid", frozen=True
    )

    triton: Listed = Field(
        ("localhost:8001",),
        min_length=1,
        description="gRPC addresses of the tritonservers: HOST:PORT, or grpcs://HOST:PORT",
    )
    triton_admin_key_file: Path | None = Field(
        None,
        description="the file that builder serve --admin-key-file has, for servers on other "
        "machines: with it models that are loading are told from unknown ones",
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="keys that callers may send as 'Authorization: Bearer KEY'; none: all may"
    )
    api_keys_file: Path | None = Field(
        None, description="a file with one key a line, or its SHA-256 as sha256:HEX"
    )
    max_body_bytes: int = Field(64 * MIB, gt=0, description="largest body of a request")
    max_upload_bytes: int = Field(
        20 * MIB, gt=0, description="largest file in a request, uploaded or in a data: URL"
    )
    max_body_bytes_in_all: int = Field(
        256 * MIB, gt=0, description="bodies of all requests that run; more are refused with 429"
    )
    max_requests: int = Field(512, gt=0, description="requests at once; more are refused with 429")
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_S,
        description="longest time for one call of a model; none: no limit",
    )
    fetch_hosts: Listed = Field((), description="hosts that images may be fetched from; none")
    chat_content: Literal["auto", ChatContent] = Field(
        "auto",
        description="`content` of a chat's answer: list (parts, as vLLM-Omni), images (empty: the "
        "pictures are in message.images alone) or markdown; auto: list where the request has an "
        "extra_body, as vLLM-Omni's clients send it, else images",
    )
    cors_origins: Listed = Field((), description="origins whose pages may call; none")
    allow_host: Listed = Field(
        (),
        description="names besides localhost that the gateway may be called by; default: on "
        "loopback none, else any",
    )
    database: str | None = Field(
        None, description="URL of the jobs' database (sqlite:///FILE, postgresql://...)"
    )
    files: str | None = Field(
        None, description="folder or fsspec URL where the jobs' results are kept"
    )
    expire_after_s: float = Field(
        24 * 3600,
        gt=0,
        le=LONGEST_S,
        description="how long a finished job and its file are kept",
    )
    job_workers: int = Field(4, gt=0, description="jobs that this gateway runs at once")
    max_jobs: int = Field(256, gt=0, description="jobs that wait or run; more are refused with 429")
    max_stored_jobs: int = Field(
        4096, gt=0, description="jobs that are kept, the finished ones too; more are refused"
    )
    page: bool = Field(True, description="serve the page at /")

    @field_validator(
        "triton", "api_keys", "fetch_hosts", "cors_origins", "allow_host", mode="before"
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _check_keys(cls, value: Any) -> Any:
        """Refuse a variable without a key: a secret that did not arrive must not let all in."""
        if isinstance(value, str) and not value.replace(",", "").strip():
            raise ValueError("it holds no key; write keys separated by commas, or unset it")
        return value

    @model_validator(mode="after")
    def _check_sizes(self) -> "Settings":
        if self.max_body_bytes_in_all < self.max_body_bytes:
            raise ValueError(
                f"max_body_bytes_in_all is {self.max_body_bytes_in_all}, but one body alone may "
                f"have {self.max_body_bytes} (max_body_bytes): set it to that or more"
            )
        return self

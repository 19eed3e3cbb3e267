"""Settings from options, environment and files: what is accepted, and who is named when not."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from fairway.errors import InvalidConfig
from fairway.settings import (
    KEYS_FILE_BYTES_MAX,
    KEYS_MAX,
    SCOPES,
    SECOND_NS,
    UNLIMITED,
    KeyEntry,
    KeySource,
    Quota,
    ServerSettings,
    digest_of,
    parse_api_keys,
    parse_keys,
    read_settings,
)

SECRET = "s3cret-that-must-not-show"
GOOD = f"""
[[key]]
name = "ci"
secret = "{SECRET}"
scopes = ["read", "write"]
"""


# --- the environment


def test_defaults_are_a_developers_server() -> None:
    assert read_settings({}) == ServerSettings()
    settings = ServerSettings()
    assert (settings.host, settings.port) == ("127.0.0.1", 4000)
    assert settings.data == Path("fairway-data")
    assert not settings.keyed
    assert not settings.allow_insecure
    assert settings.cors_origins == ()
    assert settings.tls_context() is None
    with pytest.raises(FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]


def test_every_variable_is_read() -> None:
    settings = read_settings(
        {
            "FAIRWAY_HOST": "::1",
            "FAIRWAY_PORT": " 8080 ",
            "FAIRWAY_DATA": "postgresql://u:pw@host/db",
            "FAIRWAY_CORS_ORIGINS": "https://a.example, https://b.example",
            "FAIRWAY_KEYS_FILE": "keys.toml",
            "FAIRWAY_API_KEYS": "k1:read",
            "FAIRWAY_TLS_CERT": "cert.pem",
            "FAIRWAY_TLS_KEY": "key.pem",
            "FAIRWAY_ALLOW_INSECURE": "yes",
        }
    )
    assert settings == ServerSettings(
        host="::1",
        port=8080,
        data="postgresql://u:pw@host/db",
        cors_origins=("https://a.example", "https://b.example"),
        keys_file=Path("keys.toml"),
        api_keys=parse_api_keys("k1:read"),
        tls_cert=Path("cert.pem"),
        tls_key=Path("key.pem"),
        allow_insecure=True,
    )


def test_settings_are_shown_without_their_secrets() -> None:
    settings = read_settings(
        {"FAIRWAY_DATA": f"postgresql://u:{SECRET}@h/db", "FAIRWAY_API_KEYS": f"{SECRET}:read"}
    )
    assert SECRET not in repr(settings)
    assert "data='postgresql://u:***@h/db'" in repr(settings)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRWAY_PORT", "4242")
    assert read_settings().port == 4242


def test_options_win_over_variables_even_over_broken_ones() -> None:
    environ = {"FAIRWAY_PORT": "many", "FAIRWAY_HOST": "0.0.0.0"}
    settings = read_settings(environ, port=0, host=None, allow_insecure=False)
    assert (settings.port, settings.host, settings.allow_insecure) == (0, "0.0.0.0", False)


def test_an_empty_variable_is_not_set() -> None:
    assert read_settings({"FAIRWAY_API_KEYS": " ", "FAIRWAY_PORT": ""}) == ServerSettings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FAIRWAY_PORT", "many"),
        ("FAIRWAY_PORT", "65536"),
        ("FAIRWAY_PORT", "-1"),
        ("FAIRWAY_PORT", "٤٠٠٠"),
        ("FAIRWAY_HOST", "127.0.0.1:4000"),
        ("FAIRWAY_HOST", "[::1]"),
        ("FAIRWAY_HOST", "http://localhost"),
        ("FAIRWAY_HOST", "a b"),
        ("FAIRWAY_ALLOW_INSECURE", "maybe"),
        ("FAIRWAY_API_KEYS", ","),
        ("FAIRWAY_API_KEYS", "k1:wirte"),
        ("FAIRWAY_API_KEYS", ":read"),
        ("FAIRWAY_TLS_CERT", "cert.pem"),
    ],
)
def test_a_malformed_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=variable):
        read_settings({variable: value})


def test_keys_of_either_kind_close_the_server() -> None:
    assert ServerSettings(keys_file=Path("keys.toml")).keyed
    assert ServerSettings(api_keys=parse_api_keys("k1")).keyed


def test_an_unknown_option_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError):
        read_settings({}, prot=1)


# --- keys in the environment


def test_env_keys_have_scopes_and_prefixes() -> None:
    entries = parse_api_keys("bare, k2:read+write ,k3:delete:orders.*+logs:eu,k4::tmp.,")
    assert [entry.name for entry in entries] == ["env-1", "env-2", "env-3", "env-4"]
    assert [entry.digest for entry in entries] == [
        hashlib.sha256(secret).digest() for secret in (b"bare", b"k2", b"k3", b"k4")
    ]
    assert [sorted(entry.scopes) for entry in entries] == [
        sorted(SCOPES),
        ["read", "write"],
        ["delete"],
        sorted(SCOPES),
    ]
    assert [entry.prefixes for entry in entries] == [(), (), ("orders.", "logs:eu"), ("tmp.",)]
    assert {entry.quota for entry in entries} == {Quota()}


@pytest.mark.parametrize(
    "text", [f"{SECRET}:{SECRET}", f"ok:read,a:{SECRET}:x", f"ok:read:a*b{SECRET}", f"{SECRET} x"]
)
def test_a_malformed_env_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"entry [12]: ") as refusal:
        parse_api_keys(text)
    assert SECRET not in str(refusal.value)


def test_the_same_env_key_twice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="'env-1' and 'env-2' have the same secret"):
        parse_api_keys("a:read,a:write")


# --- the keys file


def test_a_full_entry() -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    [entry] = parse_keys(
        f"""
        [[key]]
        name = "ann@shop"
        digest = "{digest.upper()}"
        scopes = ["read", "admin"]
        prefixes = ["orders.", "logs*"]
        expires = 2030-01-01T12:00:00.5+01:00
        [key.quota]
        topics = 5
        stored_bytes = 1_000_000
        requests_per_second = 100
        records_per_second = 2_000
        bytes_per_second = 3_000
        burst_seconds = 0.5
        connections = 7
        in_flight = 8
        """,
        "keys.toml",
    )
    assert entry == KeyEntry(
        name="ann@shop",
        digest=bytes.fromhex(digest),
        scopes=frozenset({"read", "admin"}),
        prefixes=("orders.", "logs"),
        expires_wall_ns=1_893_495_600 * SECOND_NS + SECOND_NS // 2,
        quota=Quota(
            topics=5,
            stored_bytes=1_000_000,
            requests_per_s=100,
            records_per_s=2_000,
            bytes_per_s=3_000,
            burst_ns=SECOND_NS // 2,
            connections=7,
            in_flight=8,
        ),
    )


def test_a_secret_becomes_its_digest_and_the_rest_has_defaults() -> None:
    [entry] = parse_keys(GOOD, "keys.toml")
    assert entry == KeyEntry(
        name="ci", digest=digest_of(SECRET), scopes=frozenset({"read", "write"})
    )


def test_a_date_is_its_start_in_utc_and_a_star_is_every_name() -> None:
    [entry] = parse_keys(GOOD + 'expires = 1970-01-02\nprefixes = ["a", "*"]', "keys.toml")
    assert entry.expires_wall_ns == 86_400 * SECOND_NS
    assert entry.prefixes == ()


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(InvalidConfig, match=r"^keys\.toml: .*line 6"):
        parse_keys(GOOD + "scopes [", "keys.toml")


SECOND = '[[key]]\nname = "two"\n'


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('secret = "b"', "scopes"),
        ('secret = "b"\nscopes = []', "scopes is empty"),
        (f'secret = "b"\nscopes = ["read", "{SECRET}"]', r"scopes\[1\] is none of read, write"),
        ('secret = "b"\nscopes = "read"', r"Expected `array`, got `str` - at `\$\.scopes`"),
        ('scopes = ["read"]', "either a secret or a digest"),
        (f'secret = "b"\ndigest = "{"0" * 64}"\nscopes = ["read"]', "either a secret or"),
        (f'digest = "{SECRET}"\nscopes = ["read"]', "64 hex digits"),
        (f'digest = "{"0" * 64}\\n"\nscopes = ["read"]', "64 hex digits"),
        ('secret = ""\nscopes = ["read"]', "visible ASCII"),
        (f'secret = "{SECRET} b"\nscopes = ["read"]', "visible ASCII"),
        ('secret = "b"\nscopes = ["read"]\nprefixes = []', "prefixes is empty"),
        ('secret = "b"\nscopes = ["read"]\nprefixes = [""]', r"prefixes\[0\]"),
        ('secret = "b"\nscopes = ["read"]\nprefixes = ["a", "a*b"]', r"prefixes\[1\]"),
        ('secret = "b"\nscopes = ["read"]\nexpires = "soon"', "expires is a date"),
        ('secret = "b"\nscopes = ["read"]\nexpires = 2030-01-01T12:00:00', "with its zone"),
        ('secret = "b"\nscopes = ["read"]\nscope = 1', "unknown field `scope`"),
        ('secret = "b"\nscopes = ["read"]\nquota = {topics = -1}', r"\$\.quota\.topics"),
        ('secret = "b"\nscopes = ["read"]\nquota = {topcs = 1}', "unknown field `topcs`"),
        ('secret = "b"\nscopes = ["read"]\nquota = {burst_seconds = 0}', "burst_seconds"),
    ],
)
def test_a_malformed_entry_is_named_and_shows_no_secret(more: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^keys\.toml: key 2 \('two'\): .*{complaint}") as no:
        parse_keys(GOOD + SECOND + more, "keys.toml")
    assert SECRET not in str(no.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no key"),
        ("key = []", "there is no key"),
        ("key = 3", r"headed \[\[key\]\]"),
        ("[key]\nname = 'a'", r"headed \[\[key\]\]"),
        (f"[[keys]]\nsecret = '{SECRET}'", "'keys' is unknown"),
        (f"key = ['{SECRET}']", "key 1: Expected `object`"),
        (f"[[key]]\nname = '{SECRET} x'\nsecret = 'b'\nscopes = ['read']", "key 1: name is 1"),
        (GOOD + GOOD.replace(SECRET, "other"), "two keys are called 'ci'"),
        (GOOD + GOOD.replace('"ci"', '"cd"'), "'ci' and 'cd' have the same secret"),
        (f"a = {'[' * 100_000}", ""),
        (f"a = {'9' * 10_000}", ""),
    ],
)
def test_a_malformed_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^keys\.toml: .*{complaint}") as refusal:
        parse_keys(text, "keys.toml")
    assert SECRET not in str(refusal.value)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="1,001 keys, at most 1,000"):
        parse_api_keys(",".join(f"k{number}" for number in range(KEYS_MAX + 1)))
    assert len(parse_api_keys(",".join(f"k{number}" for number in range(KEYS_MAX)))) == KEYS_MAX


def test_quotas_are_not_negative() -> None:
    with pytest.raises(InvalidConfig):
        Quota(connections=-1)
    with pytest.raises(InvalidConfig):
        Quota(burst_ns=0)
    assert (UNLIMITED.topics, UNLIMITED.connections, UNLIMITED.in_flight) == (0, 0, 0)


# --- where keys come from


def test_a_source_notices_any_change_of_content(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)
    fixed = parse_api_keys("k1:read")
    source = ServerSettings(keys_file=path, api_keys=fixed).key_source()
    assert [entry.name for entry in source.load()] == ["ci", "env-1"]
    assert source.load_if_changed() is None
    path.write_text(GOOD.replace("ci", "cd"))  # same size, perhaps the same tick of the clock
    changed = source.load_if_changed()
    assert changed is not None
    assert [entry.name for entry in changed] == ["cd", "env-1"]
    assert source.load_if_changed() is None


def test_a_source_complains_until_its_file_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)
    source = KeySource(path)
    good = source.load()
    for broken in (b"", b"[[key", b"\xff", b"#" * (KEYS_FILE_BYTES_MAX + 1)):
        path.write_bytes(broken)
        for _ in range(2):
            with pytest.raises(InvalidConfig, match=r"keys\.toml: "):
                source.load_if_changed()
    path.unlink()
    with pytest.raises(InvalidConfig, match=r"keys\.toml: No such file"):
        source.load_if_changed()
    path.write_text(GOOD)
    assert source.load_if_changed() is None  # the same keys as before
    assert source.load() == good


def test_a_key_of_the_file_may_not_clash_with_one_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)
    source = KeySource(path, fixed=parse_api_keys(SECRET))
    with pytest.raises(InvalidConfig, match=r"keys\.toml: .*'ci' and 'env-1'"):
        source.load()


def test_without_a_file_nothing_ever_changes() -> None:
    source = ServerSettings(api_keys=parse_api_keys("a")).key_source()
    assert [entry.name for entry in source.load()] == ["env-1"]
    assert source.load_if_changed() is None


def test_keys_are_shown_by_name_only() -> None:
    entries = parse_keys(GOOD, "keys.toml")
    settings = ServerSettings(api_keys=entries)
    for shown in (repr(entries[0]), str(entries[0]), repr(settings), f"{entries}"):
        assert "KeyEntry('ci')" in shown
        assert SECRET not in shown
        assert digest_of(SECRET).hex() not in shown
        assert repr(digest_of(SECRET)) not in shown


# --- TLS


def certificate(folder: Path, *options: str) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there is no certificate to test with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-subj", "/CN=localhost", "-days", "1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return cert, key


def test_a_certificate_and_its_key_make_a_context(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "-nodes")
    context = ServerSettings(tls_cert=cert, tls_key=key).tls_context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_key_with_a_passphrase_is_refused_rather_than_asked_about(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "-passout", "pass:hush")
    with pytest.raises(InvalidConfig, match=r"cert\.pem and .*key\.pem cannot be used for TLS"):
        ServerSettings(tls_cert=cert, tls_key=key).tls_context()


def test_missing_or_other_files_are_refused_by_name(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("no certificate")
    with pytest.raises(InvalidConfig, match=r"key\.pem: No such file"):
        ServerSettings(tls_cert=cert, tls_key=key).tls_context()
    key.write_text("no key")
    with pytest.raises(InvalidConfig, match="cannot be used for TLS"):
        ServerSettings(tls_cert=cert, tls_key=key).tls_context()
    with pytest.raises(InvalidConfig, match="together"):
        ServerSettings(tls_key=key)

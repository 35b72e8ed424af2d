//! Fuzz target: htpasswd files: user names and bcrypt hashes for client authentication.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::htpasswd(input));

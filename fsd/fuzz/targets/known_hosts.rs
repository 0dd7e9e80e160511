//! libFuzzer target: [`gitmount_fuzz::known_hosts`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gitmount_fuzz::known_hosts(data));

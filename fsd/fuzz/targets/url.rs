//! libFuzzer target: [`gitmount_fuzz::url`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gitmount_fuzz::url(data));

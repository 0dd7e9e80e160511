//! libFuzzer target: [`gitmount_fuzz::tree`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gitmount_fuzz::tree(data));

//! libFuzzer target: [`gitmount_fuzz::reference`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gitmount_fuzz::reference(data));

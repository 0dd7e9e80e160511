//! gitmount
fn main() {}

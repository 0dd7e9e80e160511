//! gitmount-fuzz

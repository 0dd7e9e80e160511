//! gitmount-bench

//! gitmount-proto

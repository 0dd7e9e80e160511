//! gitmount-tests

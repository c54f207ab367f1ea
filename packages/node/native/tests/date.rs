//! Dates of answers, without Node: the tests are in the module.

#[path = "../src/date.rs"]
#[allow(dead_code, reason = "only its tests are used")]
mod date;

//! A file or folder per command: flags in, what the programs did out.

pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod fleet;
pub(crate) mod help;
pub(crate) mod load;
pub(crate) mod plan;
pub(crate) mod prove;
pub(crate) mod proxy;
pub(crate) mod serve;
pub(crate) mod stress;
pub(crate) mod token;

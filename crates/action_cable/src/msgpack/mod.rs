//! JSON as [MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md) and back. No tree is
//! built and nothing descends, so neither depth nor a claimed length costs more than the bytes that came.

mod from_json;
mod timestamp;
mod to_json;

pub(crate) use self::from_json::put_json;
pub(crate) use self::from_json::put_unsigned;
pub(crate) use self::to_json::to_json;

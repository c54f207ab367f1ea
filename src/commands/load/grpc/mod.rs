//! gRPC on the command line: where the types of messages come from ([`SchemaFlags`]), the server that
//! describes them ([`target`], [`client`]), and `standfast load grpc-list` ([`list`]).

mod client;
pub(super) mod health;
pub(super) mod list;
mod reach;
mod target;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use load::grpc::{Reflection, Schema, limits};

use self::client::Reflected;
pub(in crate::commands) use self::target::Target;

/// Flags that say where the types of messages come from.
#[derive(clap::Args, Debug)]
pub(in crate::commands) struct SchemaFlags {
    /// Types from this .proto file; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "protoset")]
    proto: Vec<PathBuf>,
    /// Where its imports begin; repeatable [default: .]
    #[arg(long, value_name = "DIR", requires = "proto")]
    proto_path: Vec<PathBuf>,
    /// Types from a descriptor set of protoc or buf
    #[arg(long, value_name = "FILE")]
    protoset: Option<PathBuf>,
}

impl SchemaFlags {
    /// As the flags with these values.
    pub(in crate::commands) fn of_files(
        proto: Vec<PathBuf>,
        proto_path: Vec<PathBuf>,
        protoset: Option<PathBuf>,
    ) -> SchemaFlags {
        SchemaFlags { proto, proto_path, protoset }
    }

    /// Whether there are files.
    pub(in crate::commands::load) fn has_files(&self) -> bool {
        self.protoset.is_some() || !self.proto.is_empty()
    }

    /// Reads the files; `None` if no flag was given.
    ///
    /// # Errors
    /// Files that cannot be read or are invalid, with the place.
    fn read(&self) -> Result<Option<Schema>> {
        if let Some(file) = &self.protoset {
            let schema = Schema::of_descriptor_set(&read(file)?);
            return schema.with_context(|| file.display().to_string()).map(Some);
        }
        if self.proto.is_empty() {
            return Ok(None);
        }
        Ok(Some(Schema::compile(&self.proto, &self.proto_path)?))
    }

    /// The flags as they were typed.
    fn words(&self) -> Vec<String> {
        let proto = self.proto.iter().map(|file| ("--proto", file));
        let folders = self.proto_path.iter().map(|folder| ("--proto-path", folder));
        let set = self.protoset.iter().map(|file| ("--protoset", file));
        let all = proto.chain(folders).chain(set);
        all.flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    }
}

/// Reads a descriptor set, at most one byte more than the limit.
fn read(file: &Path) -> Result<Vec<u8>> {
    use std::io::Read as _;
    if file.is_dir() {
        bail!("{} is a folder: expected a descriptor set of protoc or buf", file.display());
    }
    let mut bytes = Vec::new();
    let opened = load::files::admit(file).and_then(|()| fs::File::open(file));
    let reader = opened.map(|reader| reader.take(limits::PROTOSET_BYTES + 1));
    let read = reader.and_then(|mut reader| reader.read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(bytes)
}

/// The schema of the files, or else of the server's reflection. `None` after Ctrl-C.
///
/// # Errors
/// Files or a server that give none, with what to try.
pub(in crate::commands) fn schema(
    flags: &SchemaFlags,
    target: Option<&Target>,
    metadata: &[(String, String)],
) -> Result<Option<Schema>> {
    if let Some(schema) = flags.read()? {
        return Ok(Some(schema));
    }
    let Some(target) = target else {
        bail!(
            "HOST:PORT missing: expected a server with reflection, --proto FILE or --protoset FILE"
        )
    };
    let reflected = client::reflect(target, metadata, &Reflection::of_all())?;
    Ok(match reflected {
        Reflected::Schema(schema) => Some(*schema),
        Reflected::Interrupted => None,
    })
}

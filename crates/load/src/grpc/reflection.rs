//! Server reflection (`grpc.reflection.v1`, or `v1alpha` of older servers, whose messages are the same): what to
//! ask, and the [`Schema`] from the answers. The caller has the connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;

use super::imports;
use super::limits::{REFLECTED_BYTES, REFLECTED_FILES, REFLECTED_SERVICES};
use super::schema::{Schema, SchemaError, well_known_file};
use super::status::Code;

/// The paths of the methods, newest first.
pub const REFLECTION_PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

#[derive(Clone, PartialEq, prost::Message)]
struct ServerReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 7")]
    asked: Option<Asked>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Asked {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServerReflectionResponse {
    #[prost(oneof = "Answered", tags = "4, 6, 7")]
    answered: Option<Answered>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answered {
    #[prost(message, tag = "4")]
    Files(FileDescriptorResponse),
    #[prost(message, tag = "6")]
    Services(ListServiceResponse),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileDescriptorResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListServiceResponse {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ServiceResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceResponse {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorResponse {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Why reflection gave no schema: text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReflectionError(String);

impl fmt::Display for ReflectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReflectionError {}

/// Asks a server for its services and their files, one request after another:
/// [`next_request`](Reflection::next_request), [`answer`](Reflection::answer), until there is no request, then
/// [`schema`](Reflection::schema).
#[derive(Clone, Debug)]
pub struct Reflection {
    /// Still to be asked.
    wanted: VecDeque<Wanted>,
    /// The last request.
    asked: Option<Wanted>,
    /// Names that are or will be known.
    file_names: BTreeSet<String>,
    files: BTreeMap<String, FileDescriptorProto>,
    bytes: usize,
    services: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Wanted {
    Services,
    Service(String),
    File { name: String, imported_by: String },
}

impl Reflection {
    /// Asks for all services.
    #[must_use]
    pub fn of_all() -> Reflection {
        Reflection::of(Wanted::Services)
    }

    /// Asks for one service, which need not be listed.
    #[must_use]
    pub fn of_service(name: &str) -> Reflection {
        Reflection::of(Wanted::Service(name.to_owned()))
    }

    fn of(wanted: Wanted) -> Reflection {
        Reflection {
            wanted: VecDeque::from([wanted]),
            asked: None,
            file_names: BTreeSet::new(),
            files: BTreeMap::new(),
            bytes: 0,
            services: Vec::new(),
        }
    }

    /// The next request, a message without prefix; `None` once everything is known.
    pub fn next_request(&mut self) -> Option<Vec<u8>> {
        let wanted = loop {
            let next = self.wanted.pop_front()?;
            match &next {
                // It came with another file meanwhile.
                Wanted::File { name, .. } if self.files.contains_key(name) => {}
                Wanted::Service(name) if self.has_service(name) => self.services.push(name.clone()),
                _ => break next,
            }
        };
        let asked = match &wanted {
            Wanted::Services => Asked::ListServices(String::new()),
            Wanted::Service(name) => Asked::FileContainingSymbol(name.clone()),
            Wanted::File { name, .. } => Asked::FileByFilename(name.clone()),
        };
        self.asked = Some(wanted);
        let request = ServerReflectionRequest { host: String::new(), asked: Some(asked) };
        Some(request.encode_to_vec())
    }

    /// Takes the answer to the last request.
    ///
    /// # Errors
    /// An error of the server, an answer to something else, or too much of it.
    pub fn answer(&mut self, message: &[u8]) -> Result<(), ReflectionError> {
        let response = ServerReflectionResponse::decode(message).map_err(|why| {
            ReflectionError(format!("invalid answer of the reflection service: {why}"))
        })?;
        let asked = self.asked.take();
        match (asked, response.answered) {
            (Some(Wanted::Services), Some(Answered::Services(list))) => self.list(list),
            (Some(Wanted::Service(name)), Some(Answered::Files(files))) => {
                self.add(files, &name)?;
                if !self.has_service(&name) {
                    return Err(ReflectionError(format!(
                        "reflection returned no file with service {name}"
                    )));
                }
                self.services.push(name);
                Ok(())
            }
            (Some(Wanted::File { name, .. }), Some(Answered::Files(files))) => {
                self.add(files, &name)?;
                match self.files.contains_key(&name) {
                    true => Ok(()),
                    false => Err(ReflectionError(format!("reflection returned no file {name}"))),
                }
            }
            (Some(asked), Some(Answered::Error(error))) => self.failed(asked, &error),
            _ => Err(ReflectionError(
                "invalid answer of the reflection service: it was asked for something else"
                    .to_owned(),
            )),
        }
    }

    /// The schema, once there is no request left.
    ///
    /// # Errors
    /// Files that do not fit together.
    pub fn schema(self) -> Result<Schema, SchemaError> {
        let mut files = self.files.into_values().collect();
        imports::complete(&mut files);
        Schema::of_files(files, self.services)
    }

    fn list(&mut self, list: ListServiceResponse) -> Result<(), ReflectionError> {
        let number = list.services.len();
        if number > REFLECTED_SERVICES {
            return Err(ReflectionError(format!(
                "the server has {number} services: the limit is {REFLECTED_SERVICES}"
            )));
        }
        let names = list.services.into_iter().map(|service| service.name);
        let names: BTreeSet<String> =
            names.filter(|name| !name.starts_with("grpc.reflection.")).collect();
        self.wanted.extend(names.into_iter().map(Wanted::Service));
        Ok(())
    }

    /// Keeps files that are new, and asks for what they import.
    fn add(
        &mut self,
        response: FileDescriptorResponse,
        asked: &str,
    ) -> Result<(), ReflectionError> {
        let mut imports = Vec::new();
        for bytes in response.files {
            self.bytes = self.bytes.saturating_add(bytes.len());
            if self.bytes > REFLECTED_BYTES {
                return Err(ReflectionError(format!(
                    "the types of the server are longer than {REFLECTED_BYTES} bytes: use --protoset FILE"
                )));
            }
            let file = FileDescriptorProto::decode(&*bytes).map_err(|why| {
                ReflectionError(format!("reflection returned an invalid file for {asked}: {why}"))
            })?;
            let importer = file.name().to_owned();
            imports.extend(file.dependency.iter().map(|name| (name.clone(), importer.clone())));
            self.file_names.insert(importer.clone());
            self.files.entry(importer).or_insert(file);
        }
        for (name, imported_by) in imports {
            if self.file_names.insert(name.clone()) {
                self.wanted.push_back(Wanted::File { name, imported_by });
            }
        }
        match self.file_names.len() > REFLECTED_FILES {
            true => Err(ReflectionError(format!(
                "the server has more than {REFLECTED_FILES} files of types: use --protoset FILE"
            ))),
            false => Ok(()),
        }
    }

    fn failed(&mut self, asked: Wanted, error: &ErrorResponse) -> Result<(), ReflectionError> {
        let code = u32::try_from(error.code).map_or(Code::UNKNOWN, Code);
        let message: String = error.message.chars().take(200).collect();
        let why = format!("{code}: {message}");
        match asked {
            Wanted::Services => {
                Err(ReflectionError(format!("reflection cannot list services: {why}")))
            }
            Wanted::Service(name) => {
                Err(ReflectionError(format!("reflection does not know service {name} ({why})")))
            }
            // Servers may leave out the well-known types.
            Wanted::File { name, imported_by } => match well_known_file(&name) {
                Some(file) => {
                    self.files.insert(name, file);
                    Ok(())
                }
                None => Err(ReflectionError(format!(
                    "reflection does not know {name}, which {imported_by} imports ({why}): use --proto FILE \
                     or --protoset FILE"
                ))),
            },
        }
    }

    fn has_service(&self, name: &str) -> bool {
        let (package, short) = name.rsplit_once('.').unwrap_or(("", name));
        self.files.values().any(|file| {
            file.package() == package && file.service.iter().any(|one| one.name() == short)
        })
    }
}

#[cfg(test)]
#[path = "reflection_tests.rs"]
mod tests;

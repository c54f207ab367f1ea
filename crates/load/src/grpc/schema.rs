//! [`Schema`]: the types of messages and the services, from `.proto` files, a descriptor set, or the files that
//! reflection returns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use prost_reflect::{DescriptorPool, ServiceDescriptor};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use super::limits::{LISTED_NAMES, PROTO_BYTES, PROTOSET_BYTES};
use super::method::Method;
use crate::files;

/// Services with the types of their messages.
#[derive(Clone, Debug)]
pub struct Schema {
    pool: DescriptorPool,
    /// Full names of the services that were given, not only imported.
    services: Vec<String>,
}

/// Why there is no schema: text for people.
#[derive(Clone, PartialEq, Eq)]
pub struct SchemaError(String);

impl SchemaError {
    pub(crate) fn new(why: impl Into<String>) -> SchemaError {
        SchemaError(why.into())
    }
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

/// A service of a [`Schema`].
#[derive(Clone, Debug)]
pub struct Service(ServiceDescriptor);

impl Service {
    /// Its name with the package.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.full_name()
    }

    /// Its methods, in the order of the file.
    pub fn methods(&self) -> impl Iterator<Item = Method> + '_ {
        self.0.methods().map(Method::new)
    }
}

impl Schema {
    /// Compiles `.proto` files. Imports are looked up in `folders`; without any, in the current one and in those of
    /// the files. Google's well-known types are built in.
    ///
    /// # Errors
    /// A file that cannot be read or is not valid, with line and column.
    pub fn compile(files: &[PathBuf], folders: &[PathBuf]) -> Result<Schema, SchemaError> {
        if !folders.is_empty() {
            return compile_in(files, folders);
        }
        let beside = files.iter().filter_map(|file| file.parent()).map(Path::to_path_buf);
        let mut beside: Vec<PathBuf> = beside.collect();
        beside.dedup();
        let here = [PathBuf::from("."), PathBuf::new()];
        beside.retain(|folder| !here.contains(folder));
        let first = [&beside[..], &here[..1]].concat();
        compile_in(files, &first).or_else(|why| {
            // Imports may name a file of the same folder with its path from here: a file has one name only.
            let other = [&here[..1], &beside[..]].concat();
            compile_in(files, &other).map_err(|_| why)
        })
    }

    /// Compiles the text of one `.proto` file without imports.
    ///
    /// # Errors
    /// It is not valid, with line and column.
    pub fn of_source(text: &str) -> Result<Schema, SchemaError> {
        const NAME: &str = "source.proto";
        let mut compiler = Compiler::with_file_resolver(Source(text.to_owned()));
        compiler.open_file(NAME).map_err(|why| SchemaError(format!("{why:?}")))?;
        let pool = compiler.descriptor_pool();
        let services = pool.services().map(|service| service.full_name().to_owned()).collect();
        Ok(Schema { pool, services })
    }

    /// Reads a `FileDescriptorSet`, as `protoc --descriptor_set_out` writes it.
    ///
    /// # Errors
    /// Invalid or too many bytes, or imports that are missing.
    pub fn of_descriptor_set(bytes: &[u8]) -> Result<Schema, SchemaError> {
        if bytes.len() as u64 > PROTOSET_BYTES {
            return Err(SchemaError(format!(
                "descriptor set of {} bytes: the limit is {PROTOSET_BYTES}",
                bytes.len()
            )));
        }
        let set = FileDescriptorSet::decode(bytes).map_err(|why| {
            SchemaError(format!(
                "no descriptor set ({why}): expected what protoc --include_imports --descriptor_set_out=FILE \
                 or buf build -o FILE writes"
            ))
        })?;
        if set.file.is_empty() {
            return Err(SchemaError::new("the descriptor set is empty"));
        }
        let services = set.file.iter().flat_map(services_of).collect();
        Schema::of_files(set.file, services).map_err(|why| match why.0.contains("imported file") {
            true => SchemaError(format!("{why}: write the set with protoc --include_imports")),
            false => why,
        })
    }

    /// The schema of these files, in any order, of which `services` are listed.
    pub(crate) fn of_files(
        mut files: Vec<FileDescriptorProto>,
        services: Vec<String>,
    ) -> Result<Schema, SchemaError> {
        let names: BTreeSet<String> = files.iter().map(|file| file.name().to_owned()).collect();
        let imports = files.iter().flat_map(|file| file.dependency.iter());
        let mut missing: Vec<String> =
            imports.filter(|name| !names.contains(*name)).cloned().collect();
        let mut known = names;
        // Sets and servers may leave out the well-known types.
        while let Some(name) = missing.pop() {
            if known.insert(name.clone())
                && let Some(file) = well_known_file(&name)
            {
                missing.extend(file.dependency.iter().cloned());
                files.push(file);
            }
        }
        let mut pool = DescriptorPool::new();
        pool.add_file_descriptor_protos(files).map_err(|why| SchemaError(format!("{why:?}")))?;
        Ok(Schema { pool, services })
    }

    /// The services, in the order in which they were given.
    pub fn services(&self) -> impl Iterator<Item = Service> + '_ {
        let known = self.services.iter().filter_map(|name| self.pool.get_service_by_name(name));
        known.map(Service)
    }

    /// Finds a method by its path, `/package.Service/Method`, or as `package.Service.Method`.
    ///
    /// # Errors
    /// There is none; with those that there are.
    pub fn method(&self, path: &str) -> Result<Method, SchemaError> {
        let whole = path.trim_matches('/');
        if let Some(service) = self.pool.get_service_by_name(whole) {
            return Err(SchemaError(format!(
                "missing method after {whole}; {}",
                methods(&service)
            )));
        }
        let (service, method) = split_path(path)?;
        let Some(descriptor) = self.pool.get_service_by_name(service) else {
            // All of it may be meant as the name of a service.
            return Err(self.no_service(if whole.contains('/') { service } else { whole }));
        };
        let found = descriptor.methods().find(|one| one.name() == method);
        found.map(Method::new).ok_or_else(|| {
            SchemaError(format!("no method {method} in {service}; {}", methods(&descriptor)))
        })
    }

    fn no_service(&self, service: &str) -> SchemaError {
        let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
        let similar = self.services.iter().find(|name| last(name) == last(service));
        let hint = match (similar, self.services.as_slice()) {
            (Some(name), _) => format!("did you mean {name}?"),
            (None, []) => "there are no services".to_owned(),
            (None, names) => format!("expected one of {}", listed(names)),
        };
        SchemaError(format!("no service {service}; {hint}"))
    }

    /// The types of messages, for details of statuses.
    pub(crate) fn pool(&self) -> &DescriptorPool {
        &self.pool
    }
}

/// The methods of a service, for an error.
fn methods(service: &ServiceDescriptor) -> String {
    let names: Vec<String> = service.methods().map(|one| one.name().to_owned()).collect();
    match names.as_slice() {
        [] => "it has no methods".to_owned(),
        names => format!("it has {}", listed(names)),
    }
}

/// Splits a path into service and method.
pub(crate) fn split_path(path: &str) -> Result<(&str, &str), SchemaError> {
    let inside = path.strip_prefix('/').unwrap_or(path);
    let split = inside.split_once('/').or_else(|| inside.rsplit_once('.'));
    let fits = |(service, method): &(&str, &str)| {
        !service.is_empty() && !method.is_empty() && !method.contains('/')
    };
    split.filter(fits).ok_or_else(|| {
        SchemaError(format!(
            "{path:?} names no method: expected /package.Service/Method, as in \
             grpc://127.0.0.1:50051/helloworld.Greeter/SayHello"
        ))
    })
}

/// The first names of a list.
pub(crate) fn listed(names: &[String]) -> String {
    let first = names.get(..LISTED_NAMES.min(names.len())).unwrap_or_default().join(", ");
    match names.len().saturating_sub(LISTED_NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The full names of a file's services.
pub(crate) fn services_of(file: &FileDescriptorProto) -> Vec<String> {
    let named = |service: &str| match file.package() {
        "" => service.to_owned(),
        package => format!("{package}.{service}"),
    };
    file.service.iter().map(|service| named(service.name())).collect()
}

/// A file of Google's well-known types.
pub(crate) fn well_known_file(name: &str) -> Option<FileDescriptorProto> {
    GoogleFileResolver::new().open_file(name).ok().map(FileDescriptorProto::from)
}

fn compile_in(files: &[PathBuf], folders: &[PathBuf]) -> Result<Schema, SchemaError> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Folders(folders.to_vec()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    let mut given = BTreeMap::new();
    for file in files {
        let name = name_in(folders, file)?;
        compiler.open_file(&name).map_err(|why| explained(&why, folders))?;
        given.insert(name, ());
    }
    let pool = compiler.descriptor_pool();
    let own = pool.files().filter(|file| given.contains_key(file.name()));
    let services = own.flat_map(|file| services_of(file.file_descriptor_proto())).collect();
    Ok(Schema { pool: pool.clone(), services })
}

/// An error with file, line and column, and where imports were looked up.
fn explained(error: &protox::Error, folders: &[PathBuf]) -> SchemaError {
    let mut text = format!("{error:?}");
    // An error at the end of a file has no place.
    if let Some(file) = error.file().filter(|file| !text.contains(*file)) {
        text = format!("{file}: {text}");
    }
    match error.is_file_not_found() {
        true => SchemaError(format!(
            "{text} in {}: name the folder that imports begin in with --proto-path DIR",
            listed(&folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>())
        )),
        false => SchemaError(text),
    }
}

/// The name of a file below one of the folders, by which others import it.
fn name_in(folders: &[PathBuf], file: &Path) -> Result<String, SchemaError> {
    let name = |path: &Path| {
        let parts = path.components().map(|part| part.as_os_str().to_str());
        parts.collect::<Option<Vec<_>>>().map(|parts| parts.join("/"))
    };
    let whole = match file.canonicalize() {
        Ok(whole) => whole,
        // It may be named as imports name it.
        Err(_) if folders.iter().any(|folder| folder.join(file).is_file()) => {
            return name(file).ok_or_else(|| not_text(file));
        }
        Err(why) => return Err(SchemaError(format!("cannot read {}: {why}", file.display()))),
    };
    if whole.is_dir() {
        return Err(SchemaError(format!(
            "{} is a folder: expected a .proto file; the folder that imports begin in is --proto-path",
            file.display()
        )));
    }
    for folder in folders {
        let Ok(folder) = folder.canonicalize() else { continue };
        if let Ok(below) = whole.strip_prefix(&folder) {
            return name(below).ok_or_else(|| not_text(file));
        }
    }
    let shown: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Err(SchemaError(format!(
        "{} is not in a folder of --proto-path ({})",
        file.display(),
        listed(&shown)
    )))
}

fn not_text(file: &Path) -> SchemaError {
    SchemaError(format!("{}: the name is not UTF-8", file.display()))
}

/// The text of the only file.
struct Source(String);

impl FileResolver for Source {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        File::from_source(name, &self.0)
    }
}

/// Looks up imports.
struct Folders(Vec<PathBuf>);

impl FileResolver for Folders {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if Path::new(name).is_absolute() {
            return Err(protox::Error::file_not_found(name));
        }
        for folder in &self.0 {
            let path = folder.join(name);
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.is_file() && metadata.len() > PROTO_BYTES {
                let bytes = metadata.len();
                return Err(protox::Error::new(SchemaError(format!(
                    "{}: {bytes} bytes: the limit of a .proto file is {PROTO_BYTES}",
                    path.display()
                ))));
            }
            if metadata.is_file() {
                files::admit(&path)
                    .map_err(|error| protox::Error::new(SchemaError(error.to_string())))?;
                return File::open(name, &path);
            }
        }
        Err(protox::Error::file_not_found(name))
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
pub(crate) mod tests;

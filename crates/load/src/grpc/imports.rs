//! Imports that files lack: those that `@grpc/proto-loader` makes for reflection have none, although they use
//! types of each other.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto};

use super::schema::well_known_file;

/// The files of Google's types that others use without importing them.
const WELL_KNOWN: [&str; 8] =
    ["any", "duration", "empty", "field_mask", "struct", "timestamp", "type", "wrappers"];

/// Adds to each file the imports of the types that it uses, and well-known files that are missing.
pub(crate) fn complete(files: &mut Vec<FileDescriptorProto>) {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for file in files.iter() {
        define(file, &mut owners);
    }
    let mut missing: Vec<FileDescriptorProto> = Vec::new();
    for file in files.iter_mut() {
        let mut known: BTreeSet<String> = file.dependency.iter().cloned().collect();
        known.insert(file.name().to_owned());
        for used in used(file) {
            if !owners.contains_key(&used) && used.starts_with(".google.protobuf.") {
                for name in WELL_KNOWN {
                    let file = well_known_file(&format!("google/protobuf/{name}.proto"));
                    if let Some(file) = file.filter(|file| defines(file, &used)) {
                        define(&file, &mut owners);
                        missing.push(file);
                    }
                }
            }
            // A public import of an import would do as well; one more is no error.
            if let Some(owner) = owners.get(&used)
                && known.insert(owner.clone())
            {
                file.dependency.push(owner.clone());
            }
        }
    }
    files.append(&mut missing);
}

fn defines(file: &FileDescriptorProto, name: &str) -> bool {
    let mut owners = BTreeMap::new();
    define(file, &mut owners);
    owners.contains_key(name)
}

/// Notes the types of a file by their full names, with the dot that references begin with.
fn define(file: &FileDescriptorProto, owners: &mut BTreeMap<String, String>) {
    let package = match file.package() {
        "" => String::new(),
        package => format!(".{package}"),
    };
    let mut left: Vec<(String, &DescriptorProto)> =
        file.message_type.iter().map(|message| (package.clone(), message)).collect();
    let mut note = |name: String| {
        owners.entry(name).or_insert_with(|| file.name().to_owned());
    };
    file.enum_type.iter().for_each(|one| note(format!("{package}.{}", one.name())));
    while let Some((within, message)) = left.pop() {
        let name = format!("{within}.{}", message.name());
        message.enum_type.iter().for_each(|one| note(format!("{name}.{}", one.name())));
        left.extend(message.nested_type.iter().map(|inner| (name.clone(), inner)));
        note(name);
    }
}

/// The full names that a file uses.
fn used(file: &FileDescriptorProto) -> BTreeSet<String> {
    let mut names: Vec<&str> = Vec::new();
    let mut left: Vec<&DescriptorProto> = file.message_type.iter().collect();
    let mut fields: Vec<_> = file.extension.iter().collect();
    while let Some(message) = left.pop() {
        fields.extend(message.field.iter().chain(&message.extension));
        left.extend(&message.nested_type);
    }
    for field in fields {
        names.extend([field.type_name(), field.extendee()]);
    }
    for method in file.service.iter().flat_map(|service| &service.method) {
        names.extend([method.input_type(), method.output_type()]);
    }
    names.into_iter().filter(|name| name.starts_with('.')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::schema::Schema;
    use super::super::schema::tests::Folder;
    use super::*;

    #[test]
    fn files_without_imports_find_what_they_use() {
        let folder = Folder::new(&[
            (
                "a.proto",
                "syntax = \"proto3\"; package a; import \"b.proto\"; import \"google/protobuf/empty.proto\";
                import \"google/protobuf/struct.proto\";
                message A { b.B.C c = 1; b.B.Color color = 2; google.protobuf.Value value = 3; }
                service S { rpc Get (A) returns (google.protobuf.Empty); }",
            ),
            (
                "b.proto",
                "syntax = \"proto3\"; package b; message B { message C {} enum Color { NONE = 0; } }",
            ),
        ]);
        let mut set = protox::compile(["a.proto"], [folder.path()]).unwrap();
        set.file.retain(|file| !file.name().starts_with("google"));
        set.file.iter_mut().for_each(|file| file.dependency.clear());
        assert!(Schema::of_files(set.file.clone(), Vec::new()).is_err());
        complete(&mut set.file);
        let schema = Schema::of_files(set.file, vec!["a.S".to_owned()]).unwrap();
        let method = schema.method("/a.S/Get").unwrap();
        assert!(method.request_of_json(r#"{"c":{},"color":"NONE","value":{"x":[1]}}"#).is_ok());
        assert_eq!(method.answer_type(), "google.protobuf.Empty");
    }

    #[test]
    fn unknown_types_and_cycles_stay_errors() {
        let folder = Folder::new(&[
            (
                "a.proto",
                "syntax = \"proto3\"; package a; import \"b.proto\"; message A { b.B b = 1; }",
            ),
            ("b.proto", "syntax = \"proto3\"; package b; message B {}"),
        ]);
        let mut files = protox::compile(["a.proto"], [folder.path()]).unwrap().file;
        files.retain(|file| file.name() == "a.proto");
        files[0].dependency.clear();
        complete(&mut files);
        assert_eq!(files[0].dependency, Vec::<String>::new());
        assert!(Schema::of_files(files, Vec::new()).is_err());
    }
}

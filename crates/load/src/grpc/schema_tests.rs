//! Files, descriptor sets and methods, and their errors.

use std::fs;
use std::path::PathBuf;

use prost::Message as _;
use prost_reflect::prost_types::FileDescriptorSet;

use super::*;
use crate::grpc::MethodKind;

/// A folder with files, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Folder {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("standfast-proto-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The schema of one file.
pub(crate) fn schema(text: &str) -> Schema {
    let folder = Folder::new(&[("one.proto", text)]);
    Schema::compile(&[folder.at("one.proto")], &[]).unwrap()
}

const GREETER: &str = "syntax = \"proto3\"; package helloworld;
    import \"google/protobuf/empty.proto\";
    message Hello { string name = 1; }
    service Greeter {
      rpc SayHello (Hello) returns (Hello);
      rpc Upload (stream Hello) returns (google.protobuf.Empty);
      rpc Watch (Hello) returns (stream Hello);
      rpc Chat (stream Hello) returns (stream Hello);
    }
    service Empty {}";

fn error(files: &[(&str, &str)], named: &[&str], folders: &[&str]) -> String {
    let folder = Folder::new(files);
    let named: Vec<PathBuf> = named.iter().map(|name| folder.at(name)).collect();
    let folders: Vec<PathBuf> = folders.iter().map(|name| folder.at(name)).collect();
    let text = Schema::compile(&named, &folders).unwrap_err().to_string();
    text.replace(&folder.0.display().to_string(), "DIR")
}

#[test]
fn methods_are_found_by_path_and_by_name() {
    let schema = schema(GREETER);
    let services: Vec<String> = schema.services().map(|one| one.name().to_owned()).collect();
    assert_eq!(services, ["helloworld.Greeter", "helloworld.Empty"]);
    for path in [
        "/helloworld.Greeter/SayHello",
        "helloworld.Greeter/SayHello",
        "helloworld.Greeter.SayHello",
    ] {
        let method = schema.method(path).unwrap();
        assert_eq!(method.path(), "/helloworld.Greeter/SayHello");
        assert_eq!(method.request_type(), "helloworld.Hello");
    }
    let greeter = schema.services().next().unwrap();
    let kinds: Vec<MethodKind> = greeter.methods().map(|method| method.kind()).collect();
    use MethodKind::{BidiStream, ClientStream, ServerStream, Unary};
    assert_eq!(kinds, [Unary, ClientStream, ServerStream, BidiStream]);
}

#[test]
fn unknown_methods_are_answered_with_those_that_exist() {
    let schema = schema(GREETER);
    for (path, text) in [
        (
            "/helloworld.Greeter/SayHelo",
            "no method SayHelo in helloworld.Greeter; it has SayHello, Upload, Watch, Chat",
        ),
        ("/helloworld.Empty/A", "no method A in helloworld.Empty; it has no methods"),
        ("/Greeter/SayHello", "no service Greeter; did you mean helloworld.Greeter?"),
        ("/a.B/C", "no service a.B; expected one of helloworld.Greeter, helloworld.Empty"),
        (
            "helloworld.Greet",
            "no service helloworld.Greet; expected one of helloworld.Greeter, helloworld.Empty",
        ),
    ] {
        assert_eq!(schema.method(path).unwrap_err().to_string(), text);
    }
    for path in ["", "/", "SayHello", "/a", "/a/", "//b", "/a/b/c", "."] {
        let text = schema.method(path).unwrap_err().to_string();
        assert!(text.contains("expected /package.Service/Method"), "{path}: {text}");
    }
}

#[test]
fn imports_are_found_beside_the_file_here_and_in_named_folders() {
    let one = "syntax = \"proto3\"; package a; import \"two.proto\"; message One { Two two = 1; }";
    let two = "syntax = \"proto3\"; package a; message Two {} service S {}";
    let folder = Folder::new(&[("x/one.proto", one), ("x/two.proto", two)]);
    let schema = Schema::compile(&[folder.at("x/one.proto")], &[]).unwrap();
    assert_eq!(schema.services().count(), 0, "those of imports are not listed");
    let both = [folder.at("x/one.proto"), folder.at("x/two.proto")];
    assert_eq!(Schema::compile(&both, &[]).unwrap().services().count(), 1);

    let apart = Folder::new(&[("x/one.proto", one), ("y/two.proto", two)]);
    let folders = [apart.at("x"), apart.at("y")];
    Schema::compile(&[apart.at("x/one.proto")], &folders).unwrap();
    Schema::compile(&["one.proto".into()], &folders).unwrap();
    let nested = one.replace("two.proto", "y/two.proto");
    let below = Folder::new(&[("x/one.proto", &nested), ("y/two.proto", two)]);
    Schema::compile(&[below.at("x/one.proto")], &[below.at("")]).unwrap();
}

#[test]
fn invalid_files_are_named_with_line_and_column() {
    let text =
        error(&[("a.proto", "syntax = \"proto3\";\nmessage A { string = 1; }")], &["a.proto"], &[]);
    assert!(text.starts_with("a.proto:2:20: "), "{text}");
    let text = error(
        &[("a.proto", "syntax = \"proto3\";\nmessage A {\n  B b = 1;\n}")],
        &["a.proto"],
        &[],
    );
    assert!(text.starts_with("a.proto:3:3: ") && text.contains("'B'"), "{text}");
    let text =
        error(&[("a.proto", "syntax = \"proto3\";\n import \"b.proto\";")], &["a.proto"], &[]);
    assert_eq!(
        text,
        "a.proto:2:2: import 'b.proto' not found in DIR, .: name the folder that imports begin in with \
         --proto-path DIR"
    );
    let cycle = [("a.proto", "import \"b.proto\";"), ("b.proto", "import \"a.proto\";")];
    let text = error(&cycle, &["a.proto"], &[]);
    assert!(text.contains("cycle") && text.contains("a.proto -> b.proto"), "{text}");
    let text = error(&[("a.proto", "import \"a.proto\";")], &["a.proto"], &[]);
    assert!(text.contains("cycle"), "{text}");
    let text = error(&[("x/a.proto", "")], &["x/no.proto"], &[]);
    assert_eq!(text, "cannot read DIR/x/no.proto: No such file or directory (os error 2)");
    let text = error(&[("x/a.proto", ""), ("y/b.proto", "")], &["x/a.proto"], &["y"]);
    assert_eq!(text, "DIR/x/a.proto is not in a folder of --proto-path (DIR/y)");
}

#[test]
fn descriptor_sets_are_read_without_the_well_known_types() {
    let folder = Folder::new(&[("one.proto", GREETER)]);
    let set = protox::compile(["one.proto"], [&folder.0]).unwrap();
    let greeter = set.file.iter().find(|file| file.name() == "one.proto").unwrap().clone();
    let whole = Schema::of_descriptor_set(&set.encode_to_vec()).unwrap();
    let alone = FileDescriptorSet { file: vec![greeter] };
    let alone = Schema::of_descriptor_set(&alone.encode_to_vec()).unwrap();
    for schema in [whole, alone] {
        let method = schema.method("/helloworld.Greeter/Upload").unwrap();
        assert_eq!(method.answer_type(), "google.protobuf.Empty");
        assert_eq!(schema.services().count(), 2);
    }
}

#[test]
fn invalid_descriptor_sets_are_refused() {
    let text = |bytes: &[u8]| Schema::of_descriptor_set(bytes).unwrap_err().to_string();
    assert!(text(b"syntax = \"proto3\";").contains("protoc --include_imports"));
    assert_eq!(text(b""), "the descriptor set is empty");
    let folder = Folder::new(&[("a.proto", "import \"b.proto\";"), ("b.proto", "")]);
    let mut set = protox::compile(["a.proto"], [&folder.0]).unwrap();
    set.file.retain(|file| file.name() == "a.proto");
    let error = text(&set.encode_to_vec());
    assert!(error.contains("b.proto") && error.contains("--include_imports"), "{error}");
}

//! Reflection against a server of one and of all files at a time.

use prost_reflect::prost_types::FileDescriptorSet;

use super::*;
use crate::grpc::schema::tests::Folder;

/// A server that returns single files, or all that a file imports.
struct Server {
    set: FileDescriptorSet,
    services: Vec<&'static str>,
    whole: bool,
    /// Files that it does not have.
    without: &'static str,
    requests: usize,
}

impl Server {
    fn new() -> Server {
        let folder = Folder::new(&[
            (
                "s.proto",
                "syntax = \"proto3\"; package a; import \"m.proto\"; import \"n.proto\";
                service S { rpc Get (M) returns (N); } service T { rpc Get (M) returns (M); }",
            ),
            (
                "m.proto",
                "syntax = \"proto3\"; package a; import \"google/protobuf/timestamp.proto\"; import \"n.proto\";
                message M { google.protobuf.Timestamp at = 1; N n = 2; }",
            ),
            ("n.proto", "syntax = \"proto3\"; package a; message N { string name = 1; }"),
        ]);
        let set = protox::compile(["s.proto"], [folder.path()]).unwrap();
        let services = vec!["grpc.reflection.v1.ServerReflection", "a.T", "a.S"];
        Server { set, services, whole: false, without: "google/", requests: 0 }
    }

    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        self.requests += 1;
        let request = ServerReflectionRequest::decode(request).unwrap();
        let error =
            |message: &str| Answered::Error(ErrorResponse { code: 5, message: message.to_owned() });
        let files = |names: Vec<&FileDescriptorProto>| {
            let files = names.into_iter().map(|file| file.encode_to_vec()).collect();
            Answered::Files(FileDescriptorResponse { files })
        };
        let answered = match request.asked.unwrap() {
            Asked::ListServices(_) => {
                let named = |name: &&str| ServiceResponse { name: (*name).to_owned() };
                let services = self.services.iter().map(named).collect();
                Answered::Services(ListServiceResponse { services })
            }
            Asked::FileContainingSymbol(name) if !name.starts_with("a.") => error("no such symbol"),
            Asked::FileContainingSymbol(_) => {
                let file = |file: &&FileDescriptorProto| self.whole || file.name() == "s.proto";
                files(self.set.file.iter().filter(file).collect())
            }
            Asked::FileByFilename(name) if name.starts_with(self.without) => error("no such file"),
            Asked::FileByFilename(name) => {
                files(self.set.file.iter().filter(|file| file.name() == name).collect())
            }
        };
        ServerReflectionResponse { answered: Some(answered) }.encode_to_vec()
    }

    fn reflect(&mut self, mut reflection: Reflection) -> Result<Schema, ReflectionError> {
        while let Some(request) = reflection.next_request() {
            reflection.answer(&self.answer(&request))?;
            assert!(self.requests < 100, "it ends");
        }
        Ok(reflection.schema().unwrap())
    }
}

#[test]
fn services_and_their_imports_are_asked_for() {
    for whole in [false, true] {
        let mut server = Server { whole, ..Server::new() };
        let schema = server.reflect(Reflection::of_all()).unwrap();
        let services: Vec<String> = schema.services().map(|one| one.name().to_owned()).collect();
        assert_eq!(services, ["a.S", "a.T"]);
        let method = schema.method("/a.S/Get").unwrap();
        assert!(
            method.request_of_json(r#"{"at":"2026-01-31T18:05:00Z","n":{"name":"x"}}"#).is_ok()
        );
        // The list, a file with both services, and what it imports, once each.
        assert_eq!(server.requests, if whole { 2 } else { 5 });
    }
}

#[test]
fn one_service_needs_no_list() {
    let mut server = Server { whole: true, services: Vec::new(), ..Server::new() };
    let schema = server.reflect(Reflection::of_service("a.S")).unwrap();
    assert!(schema.method("/a.S/Get").is_ok());
    assert_eq!((server.requests, schema.services().count()), (1, 1));
}

#[test]
fn errors_of_the_server_are_told() {
    let text =
        |server: &mut Server, reflection| server.reflect(reflection).unwrap_err().to_string();
    let mut server = Server::new();
    assert_eq!(
        text(&mut server, Reflection::of_service("b.S")),
        "reflection does not know service b.S (NOT_FOUND: no such symbol)"
    );
    let mut server = Server { without: "n.", ..Server::new() };
    assert_eq!(
        text(&mut server, Reflection::of_all()),
        "reflection does not know n.proto, which s.proto imports (NOT_FOUND: no such file): use --proto FILE \
         or --protoset FILE"
    );
    assert_eq!(
        text(&mut Server::new(), Reflection::of_service("a.U")),
        "reflection returned no file with service a.U"
    );
}

#[test]
fn answers_to_something_else_are_refused() {
    let services = Answered::Services(ListServiceResponse::default());
    let files = Answered::Files(FileDescriptorResponse::default());
    for (mut reflection, answered) in [
        (Reflection::of_all(), Some(files)),
        (Reflection::of_service("a.S"), Some(services)),
        (Reflection::of_all(), None),
    ] {
        reflection.next_request().unwrap();
        let message = ServerReflectionResponse { answered }.encode_to_vec();
        let error = reflection.answer(&message).unwrap_err().to_string();
        assert!(error.contains("something else"), "{error}");
        assert!(reflection.answer(&message).is_err(), "nothing was asked");
    }
    let mut reflection = Reflection::of_all();
    reflection.next_request().unwrap();
    assert!(reflection.answer(b"\xff").unwrap_err().to_string().contains("invalid answer"));
}

#[test]
fn what_a_server_may_return_is_bounded() {
    let answer = |reflection: &mut Reflection, answered| {
        reflection.next_request().unwrap();
        let message = ServerReflectionResponse { answered: Some(answered) }.encode_to_vec();
        reflection.answer(&message).unwrap_err().to_string()
    };
    let services = vec![ServiceResponse { name: "a.S".to_owned() }; REFLECTED_SERVICES + 1];
    let list = Answered::Services(ListServiceResponse { services });
    assert!(answer(&mut Reflection::of_all(), list).contains("the limit is 4096"));
    let large =
        Answered::Files(FileDescriptorResponse { files: vec![vec![0; REFLECTED_BYTES + 1]] });
    assert!(answer(&mut Reflection::of_service("a.S"), large).contains("--protoset"));
    // A server that makes up a file for every name would be asked forever.
    let dependency = (0..=REFLECTED_FILES).map(|n| format!("{n}.proto")).collect();
    let file = FileDescriptorProto { dependency, ..FileDescriptorProto::default() }.encode_to_vec();
    let files = Answered::Files(FileDescriptorResponse { files: vec![file] });
    assert!(answer(&mut Reflection::of_service("a.S"), files).contains("more than 4096 files"));
}

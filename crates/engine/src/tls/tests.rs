//! The record layer alone: both ends in memory, their bytes split in every way.

use rcgen::{CertificateParams, Issuer, KeyPair};

use super::*;
use crate::limits::TLS_TORN_BYTES_MAX;

/// An authority, and what it signs.
pub(super) struct House {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

impl House {
    pub(super) fn new() -> House {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        House { ca, issuer: Issuer::new(params, key) }
    }

    pub(super) fn identity(&self, name: &str) -> TlsIdentity {
        let (certificate, key) = self.pem(name);
        TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()
    }

    fn pem(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(super) fn client(&self, name: &str) -> TlsClient {
        let trust = TlsTrust::Authorities(self.ca.clone().into_bytes());
        TlsClient::new(&trust, None, true).unwrap().named(name).unwrap()
    }
}

/// One end, and what it received.
pub(super) struct End {
    pub(super) tls: Tls,
    pub(super) heard: Vec<u8>,
    then: Then,
}

impl End {
    fn new(tls: Tls) -> End {
        End { tls, heard: Vec::new(), then: Then::Open }
    }

    /// Receives `bytes` in pieces of `step` and returns the answer.
    pub(super) fn take(&mut self, bytes: &[u8], step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.chunks(step.max(1)) {
            let kept = self.tls.torn.len();
            let mut cipher = vec![0; kept + piece.len()];
            cipher[kept..].copy_from_slice(piece);
            let mut plain = vec![0; cipher.len()];
            let received = self.tls.receive(&mut cipher, kept, &mut plain, &mut out);
            self.heard.extend_from_slice(&plain[..received.plain]);
            self.then = received.then;
            if self.then != Then::Open {
                break;
            }
        }
        out
    }

    fn say(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.tls.seal(plain, &mut out).unwrap();
        out
    }
}

/// Both ends after their handshake, carried out in pieces of `step`; or as far as it came.
pub(super) fn meet(server: &TlsServer, client: &TlsClient, step: usize) -> (End, End) {
    let (mut server, mut client) =
        (End::new(server.begin().unwrap()), End::new(client.begin().unwrap()));
    let mut flight = Vec::new();
    client.tls.session.receive(&mut [], &mut [], &mut flight);
    while !flight.is_empty() {
        let answer = server.take(&flight, step);
        flight = client.take(&answer, step);
    }
    (server, client)
}

pub(super) fn server_of(identities: &[TlsIdentity]) -> TlsServer {
    TlsServer::new(identities, TlsVersion::Tls12, None).unwrap()
}

#[test]
fn however_the_bytes_are_torn_the_plaintext_is_the_same() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let client = house.client("one.test");
    for step in [1, 2, 5, 100, 16_000, usize::MAX / 2] {
        let (mut server, mut client) = meet(&server, &client, step);
        assert!(server.tls.session.handshake().is_some(), "by {step}");
        let mut flight = client.say(b"a first message");
        flight.extend(client.say(&[7; 40_000]));
        let answer = server.say(b"and the answer");
        client.take(&answer, step);
        assert_eq!(client.heard, b"and the answer");
        client.tls.close(&mut flight);
        server.take(&flight, step);
        assert!(server.heard.starts_with(b"a first message\x07\x07"), "by {step}");
        assert_eq!((server.heard.len(), server.then), (40_015, Then::Closed), "by {step}");
        assert!(server.tls.torn.is_empty());
    }
}

#[test]
fn the_name_asked_for_chooses_the_certificate_and_the_first_is_for_all_others() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test"), house.identity("*.two.test")]);
    for (name, agreed) in
        [("one.test", true), ("a.two.test", true), ("three.test", false), ("two.test", false)]
    {
        let (server, client) = meet(&server, &house.client(name), 4_096);
        assert_eq!(client.tls.session.handshake().is_some(), agreed, "{name}");
        assert_eq!(server.tls.session.handshake().is_some(), agreed, "{name}");
        assert_eq!(client.then == Then::Broken, !agreed, "{name}");
    }
}

#[test]
fn a_second_connection_takes_the_session_up_unless_it_is_told_not_to() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let trust = TlsTrust::Authorities(house.ca.clone().into_bytes());
    for (resume, second) in [(true, Handshake::Resumed), (false, Handshake::Full)] {
        let client = TlsClient::new(&trust, None, resume).unwrap().named("one.test").unwrap();
        let (first, _) = meet(&server, &client, 9_999);
        assert_eq!(first.tls.session.handshake(), Some(Handshake::Full));
        let (again, _) = meet(&server, &client, 9_999);
        assert_eq!(again.tls.session.handshake(), Some(second), "resume: {resume}");
    }
}

#[test]
fn a_server_with_client_authorities_lets_only_their_clients_in() {
    let house = House::new();
    let identity = house.identity("one.test");
    let ca = house.ca.as_bytes();
    let server =
        TlsServer::new(std::slice::from_ref(&identity), TlsVersion::Tls13, Some(ca)).unwrap();
    let trust = TlsTrust::Authorities(ca.to_vec());
    let known = TlsClient::new(&trust, Some(&house.identity("client")), true).unwrap();
    let stranger = TlsClient::new(&trust, Some(&House::new().identity("client")), true).unwrap();
    for (client, welcome) in [(known, true), (stranger, false), (house.client("one.test"), false)] {
        let (server, client) = meet(&server, &client.named("one.test").unwrap(), 4_096);
        assert_eq!(server.tls.session.handshake().is_some(), welcome);
        // In TLS 1.3 a client is done before it is judged, and hears of it by an alert.
        assert_eq!(client.then == Then::Broken, !welcome);
    }
}

#[test]
fn anyone_is_believed_only_where_that_was_asked_for() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let elsewhere = House::new().client("one.test");
    assert_eq!(meet(&server, &elsewhere, 4_096).1.then, Then::Broken);
    let insecure = TlsClient::new(&TlsTrust::Anyone, None, true).unwrap();
    let (_, client) = meet(&server, &insecure.named("other.test").unwrap(), 4_096);
    assert!(client.tls.session.handshake().is_some());
}

#[test]
fn junk_ends_it_with_an_alert_and_a_record_without_end_is_not_kept() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let mut junk = End::new(server.begin().unwrap());
    let alert = junk.take(&[0x47; 65_536], 8_192);
    assert_eq!(junk.then, Then::Broken);
    assert_eq!(alert.first(), Some(&21), "an alert is a record of type 21");
    // A handshake message that announces 60,000 bytes.
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    hello.resize(5 + 0x4000, 0);
    let mut endless = End::new(server.begin().unwrap());
    while endless.then == Then::Open {
        endless.take(&hello, 1_000);
        assert!(endless.tls.torn.len() <= TLS_TORN_BYTES_MAX);
        hello.truncate(5);
        hello.resize(5 + 0x4000, 0);
    }
    assert_eq!(endless.then, Then::Broken);
    assert!(endless.tls.seal(b"more", &mut Vec::new()).is_err());
}

#[test]
fn what_is_altered_under_way_is_not_believed() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let (mut server, mut client) = meet(&server, &house.client("one.test"), 4_096);
    let mut flight = client.say(b"pay 1");
    if let Some(byte) = flight.last_mut() {
        *byte ^= 1;
    }
    server.take(&flight, 4_096);
    assert_eq!((server.heard.len(), server.then), (0, Then::Broken));
}

#[test]
fn each_unusable_file_is_told_for_what_it_is() {
    let house = House::new();
    let (certificate, key) = house.pem("one.test");
    let (_, other) = house.pem("one.test");
    let told = |certificate: &str, key: &str| {
        TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(told("hello", &key).contains("no certificate"));
    assert!(told(&key, &key).contains("no certificate"));
    assert!(told(&certificate, &certificate).contains("no private key"));
    assert!(told(&certificate, &other).contains("another certificate"));
    let cut = &certificate[..certificate.len() / 2];
    assert!(told(cut, &key).contains("PEM"), "{}", told(cut, &key));
    assert!(house.client("one.test").named("not a name").is_err());
}

#[test]
fn a_torn_message_of_the_handshake_does_not_hinder_what_is_sent() {
    let house = House::new();
    let server = server_of(&[house.identity("one.test")]);
    let (mut server, mut client) = meet(&server, &house.client("one.test"), 4_096);
    // Half of a record, then all but its last byte, and an answer at each step.
    let flight = client.say(&[1; 3_000]);
    for piece in [&flight[..9], &flight[9..flight.len() - 1]] {
        server.take(piece, usize::MAX / 2);
        assert!(!server.tls.torn.is_empty());
        let answer = server.say(b"meanwhile");
        client.take(&answer, 3);
    }
    server.take(&flight[flight.len() - 1..], 1);
    assert_eq!((server.heard.len(), client.heard.len()), (3_000, 18));
}

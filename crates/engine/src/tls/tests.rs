//! The record layer alone: both ends in memory, their bytes split in every way.

use rcgen::{CertificateParams, Issuer, KeyPair};

use super::*;
use crate::limits::TLS_PARTIAL_BYTES_MAX;

/// An authority, and the certificates it signs.
pub(super) struct CertificateAuthority {
    ca: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    pub(super) fn new() -> CertificateAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        CertificateAuthority { ca, issuer: Issuer::new(params, key) }
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
    pub(super) received: Vec<u8>,
    then: StreamState,
}

impl End {
    fn new(tls: Tls) -> End {
        End { tls, received: Vec::new(), then: StreamState::Open }
    }

    /// Receives `bytes` in pieces of `step` and returns the answer.
    pub(super) fn take(&mut self, bytes: &[u8], step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.chunks(step.max(1)) {
            let kept = self.tls.partial.len();
            let mut cipher = vec![0; kept + piece.len()];
            cipher[kept..].copy_from_slice(piece);
            let mut plain = vec![0; cipher.len()];
            let result = self.tls.receive(&mut cipher, kept, &mut plain, &mut out);
            self.received.extend_from_slice(&plain[..result.plain]);
            self.then = result.then;
            if self.then != StreamState::Open {
                break;
            }
        }
        out
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.tls.seal(plain, &mut out).unwrap();
        out
    }
}

/// Both ends after their handshake, carried out in pieces of `step`; or as far as it got.
pub(super) fn handshake(server: &TlsServer, client: &TlsClient, step: usize) -> (End, End) {
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
    TlsServer::new(identities, TlsVersion::Tls12, ClientAuth::None).unwrap()
}

#[test]
fn plaintext_is_the_same_for_every_read_size() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let client = authority.client("one.test");
    for step in [1, 2, 5, 100, 16_000, usize::MAX / 2] {
        let (mut server, mut client) = handshake(&server, &client, step);
        assert!(server.tls.session.handshake().is_some(), "by {step}");
        let mut flight = client.seal(b"a first message");
        flight.extend(client.seal(&[7; 40_000]));
        let answer = server.seal(b"and the answer");
        client.take(&answer, step);
        assert_eq!(client.received, b"and the answer");
        client.tls.close(&mut flight);
        server.take(&flight, step);
        assert!(server.received.starts_with(b"a first message\x07\x07"), "by {step}");
        assert_eq!(
            (server.received.len(), server.then),
            (40_015, StreamState::Closed),
            "by {step}"
        );
        assert!(server.tls.partial.is_empty());
    }
}

#[test]
fn waiting_records_count_with_the_memory_that_they_take() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let (mut server, _) = handshake(&server, &authority.client("one.test"), 4_096);
    server.tls.opened = true;
    let idle = server.tls.held();
    server.tls.out = vec![0; 60_000];
    // All but one byte are sent.
    server.tls.out.drain(..59_999);
    assert!(server.tls.held() >= idle + 60_000, "{}", server.tls.held());
    server.tls.out = Vec::new();
    assert_eq!(server.tls.held(), idle);
}

#[test]
fn sni_chooses_the_certificate_and_the_first_is_the_default() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test"), authority.identity("*.two.test")]);
    for (name, agreed) in
        [("one.test", true), ("a.two.test", true), ("three.test", false), ("two.test", false)]
    {
        let (server, client) = handshake(&server, &authority.client(name), 4_096);
        assert_eq!(client.tls.session.handshake().is_some(), agreed, "{name}");
        assert_eq!(server.tls.session.handshake().is_some(), agreed, "{name}");
        assert_eq!(client.then == StreamState::Failed, !agreed, "{name}");
    }
}

#[test]
fn a_second_connection_resumes_the_session_unless_disabled() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let trust = TlsTrust::Authorities(authority.ca.clone().into_bytes());
    for (resume, second) in [(true, Handshake::Resumed), (false, Handshake::Full)] {
        let client = TlsClient::new(&trust, None, resume).unwrap().named("one.test").unwrap();
        let (first, _) = handshake(&server, &client, 9_999);
        assert_eq!(first.tls.session.handshake(), Some(Handshake::Full));
        let (again, _) = handshake(&server, &client, 9_999);
        assert_eq!(again.tls.session.handshake(), Some(second), "resume: {resume}");
    }
}

#[test]
fn client_authorities_admit_only_clients_they_signed() {
    let authority = CertificateAuthority::new();
    let identity = authority.identity("one.test");
    let ca = authority.ca.as_bytes();
    let trust = TlsTrust::Authorities(ca.to_vec());
    let client = |of: Option<&TlsIdentity>| TlsClient::new(&trust, of, true).unwrap();
    let stranger = CertificateAuthority::new().identity("client");
    let known = authority.identity("client");
    for (auth, without) in [(ClientAuth::Required(ca), false), (ClientAuth::Optional(ca), true)] {
        let one = std::slice::from_ref(&identity);
        let server = TlsServer::new(one, TlsVersion::Tls13, auth).unwrap();
        // TLS 1.2 has tickets of its own.
        let older = TlsServer::new(one, TlsVersion::Tls12, auth).unwrap();
        assert!(!older.config().ticketer.enabled());
        for (identity, welcome) in [(Some(&known), true), (Some(&stranger), false), (None, without)]
        {
            let client = client(identity).named("one.test").unwrap();
            // Nobody resumes a session: each connection proves it anew.
            for _ in 0..2 {
                let (server, client) = handshake(&server, &client, 4_096);
                let how = server.tls.session.handshake();
                assert_eq!(how, welcome.then_some(Handshake::Full), "{auth:?} {identity:?}");
                // In TLS 1.3 a client completes its handshake before the server verifies it, and learns of
                // a refusal by an alert.
                assert_eq!(client.then == StreamState::Failed, !welcome);
                let shown = server.tls.session.peer_certificate().filter(|_| welcome);
                let own = identity.filter(|_| welcome).map(|own| &*own.certified.cert[0]);
                assert!(shown == own, "{auth:?} {identity:?}");
            }
        }
    }
}

#[test]
fn so_many_authorities_that_their_names_fill_no_message_are_not_named() {
    let named = |organization: String| {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    };
    let authority = CertificateAuthority::new();
    let mut authorities = authority.ca.clone();
    (0..70).for_each(|one| authorities += &named(format!("{one} {}", "x".repeat(1_000))));
    let server = TlsServer::new(
        &[authority.identity("one.test")],
        TlsVersion::Tls12,
        ClientAuth::Required(authorities.as_bytes()),
    )
    .unwrap();
    let trust = TlsTrust::Authorities(authority.ca.clone().into_bytes());
    let client = TlsClient::new(&trust, Some(&authority.identity("client")), true).unwrap();
    let (server, _) = handshake(&server, &client.named("one.test").unwrap(), 4_096);
    assert!(server.tls.session.handshake().is_some());
}

#[test]
fn any_server_is_trusted_only_on_request() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let elsewhere = CertificateAuthority::new().client("one.test");
    assert_eq!(handshake(&server, &elsewhere, 4_096).1.then, StreamState::Failed);
    let insecure = TlsClient::new(&TlsTrust::Any, None, true).unwrap();
    let (_, client) = handshake(&server, &insecure.named("other.test").unwrap(), 4_096);
    assert!(client.tls.session.handshake().is_some());
}

#[test]
fn junk_gets_an_alert_and_an_endless_record_is_not_kept() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let mut junk = End::new(server.begin().unwrap());
    let alert = junk.take(&[0x47; 65_536], 8_192);
    assert_eq!(junk.then, StreamState::Failed);
    assert_eq!(alert.first(), Some(&21), "an alert is a record of type 21");
    // A handshake message that announces 60,000 bytes.
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    hello.resize(5 + 0x4000, 0);
    let mut endless = End::new(server.begin().unwrap());
    while endless.then == StreamState::Open {
        endless.take(&hello, 1_000);
        assert!(endless.tls.partial.len() <= TLS_PARTIAL_BYTES_MAX);
        hello.truncate(5);
        hello.resize(5 + 0x4000, 0);
    }
    assert_eq!(endless.then, StreamState::Failed);
    assert!(endless.tls.seal(b"more", &mut Vec::new()).is_err());
}

#[test]
fn altered_records_are_refused() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let (mut server, mut client) = handshake(&server, &authority.client("one.test"), 4_096);
    let mut flight = client.seal(b"pay 1");
    if let Some(byte) = flight.last_mut() {
        *byte ^= 1;
    }
    server.take(&flight, 4_096);
    assert_eq!((server.received.len(), server.then), (0, StreamState::Failed));
}

#[test]
fn each_unusable_file_has_its_own_error() {
    let authority = CertificateAuthority::new();
    let (certificate, key) = authority.pem("one.test");
    let (_, other) = authority.pem("one.test");
    let error_of = |certificate: &str, key: &str| {
        TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(error_of("hello", &key).contains("no certificate"));
    assert!(error_of(&key, &key).contains("no certificate"));
    assert!(error_of(&certificate, &certificate).contains("invalid private key"));
    assert!(error_of(&certificate, &other).contains("another certificate"));
    let cut = &certificate[..certificate.len() / 2];
    assert!(error_of(cut, &key).contains("PEM"), "{}", error_of(cut, &key));
    assert!(authority.client("one.test").named("not a name").is_err());
}

#[test]
fn a_partial_handshake_message_does_not_block_sending() {
    let authority = CertificateAuthority::new();
    let server = server_of(&[authority.identity("one.test")]);
    let (mut server, mut client) = handshake(&server, &authority.client("one.test"), 4_096);
    // Half of a record, then all but its last byte, and an answer at each step.
    let flight = client.seal(&[1; 3_000]);
    for piece in [&flight[..9], &flight[9..flight.len() - 1]] {
        server.take(piece, usize::MAX / 2);
        assert!(!server.tls.partial.is_empty());
        let answer = server.seal(b"meanwhile");
        client.take(&answer, 3);
    }
    server.take(&flight[flight.len() - 1..], 1);
    assert_eq!((server.received.len(), client.received.len()), (3_000, 18));
}

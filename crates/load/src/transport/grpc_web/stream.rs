//! [`GrpcWebStream`]: calls that several messages answer, which the requester counts and times as they arrive
//! (`workload/requests/conversation.rs`).

use crate::grpc::{Code, answer_status};
use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::transport::grpc::of_code;
use crate::transport::grpc_web::{GrpcWeb, GrpcWebState};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// The gRPC-Web driver of one worker for streams of answers.
pub struct GrpcWebStream(GrpcWeb);

impl GrpcWebStream {
    /// A driver of messages of at most so many bytes.
    #[must_use]
    pub fn new(message_bytes_max: usize) -> GrpcWebStream {
        GrpcWebStream(GrpcWeb::new(false, message_bytes_max))
    }
}

impl Driver for GrpcWebStream {
    type State = GrpcWebState;

    const MESSAGES: bool = true;

    fn encode<'a>(&'a mut self, state: &mut GrpcWebState, request: &'a Request) -> &'a [u8] {
        self.0.encode(state, request)
    }

    fn receive(
        &mut self,
        state: &mut GrpcWebState,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Received {
        let received = self.0.receive(state, bytes, awaited);
        // As over HTTP/2: an answer that is not one of gRPC-Web must not be ended as good by `--hold`.
        match state.answer.as_ref().filter(|_| matches!(received, Received::More)) {
            Some(answer) if answer.code.is_none() && answer.status != 200 => {
                Received::Failed(of_code(Code::of_http(answer.status)))
            }
            Some(answer) if !answer.is_grpc => Received::Failed(Failure::GrpcContentType),
            _ => received,
        }
    }

    fn ended(&mut self, state: &mut GrpcWebState) -> Received {
        self.0.ended(state)
    }

    fn completed(&self) -> u32 {
        self.0.completed
    }

    fn end_early(&mut self, state: &mut GrpcWebState) -> CompleteAnswer {
        let answer = state.answer.take();
        let body_bytes = answer.as_ref().map_or(0, |answer| answer.decoder.message_bytes);
        let code = answer.as_ref().and_then(|answer| answer.code).unwrap_or(Code::OK);
        answer.into_iter().for_each(|mut answer| {
            answer.decoder.restart();
            self.0.decoders.push(answer.decoder);
        });
        CompleteAnswer { used: 0, status: answer_status(code), keep: false, body_bytes }
    }
}

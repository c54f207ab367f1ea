//! [`Shop`]: the service of `shop.proto` by tonic, with its reflection and health, as `peers/grpc_shop.js` has it by
//! grpc-js. In the process of the tests, on a thread of its own.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;

use tonic::body::Body;
use tonic::codegen::tokio_stream::{Stream, StreamExt, iter};
use tonic::codegen::{BoxFuture, CompressionEncoding, Service, http};
use tonic::server::{
    ClientStreamingService, Grpc, NamedService, ServerStreamingService, StreamingService,
    UnaryService,
};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_prost::ProstCodec;
use tonic_types::{ErrorDetails, StatusExt};

/// Orders that answer `Watch`.
pub(crate) const WATCHED: usize = 3;

/// The fields of an order that are looked at.
#[derive(Clone, PartialEq, prost::Message)]
struct Order {
    #[prost(string, tag = "1")]
    customer_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Receipt {
    #[prost(string, tag = "1")]
    text: String,
}

/// Versions of reflection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reflected {
    V1,
    V1Alpha,
    None,
}

/// A server that ends with its test's process.
pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
}

impl Shop {
    pub(crate) fn start(reflected: Reflected) -> Shop {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let (reporter, health) = tonic_health::server::health_reporter();
                reporter.set_service_status("on", ServingStatus::Serving).await;
                reporter.set_service_status("off", ServingStatus::NotServing).await;
                let server = tonic::transport::Server::builder().add_service(Orders);
                let server = server.add_service(health);
                let builder = || {
                    tonic_reflection::server::Builder::configure()
                        .register_encoded_file_descriptor_set(leak(descriptors()))
                };
                let server = match reflected {
                    Reflected::V1 => server.add_service(builder().build_v1().unwrap()),
                    Reflected::V1Alpha => server.add_service(builder().build_v1alpha().unwrap()),
                    Reflected::None => server,
                };
                let incoming = tonic::transport::server::TcpIncoming::from(listener);
                server.serve_with_incoming(incoming.with_nodelay(Some(true))).await.unwrap();
            });
        });
        Shop { address: told.recv().unwrap() }
    }
}

fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Vec::leak(bytes)
}

/// `shop.proto` and what it imports.
fn descriptors() -> Vec<u8> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers"));
    let set = protox::compile(["shop.proto"], [folder]).unwrap();
    prost::Message::encode_to_vec(&set)
}

/// The service `shop.v1.Orders`.
#[derive(Clone)]
struct Orders;

impl NamedService for Orders {
    const NAME: &'static str = "shop.v1.Orders";
}

impl Service<http::Request<Body>> for Orders {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/shop.v1.Orders/Place" => grpc(ProstCodec::default()).unary(Place, request).await,
                "/shop.v1.Orders/Import" => {
                    grpc(ProstCodec::default()).client_streaming(Import, request).await
                }
                "/shop.v1.Orders/Watch" => {
                    grpc(ProstCodec::default()).server_streaming(Watch, request).await
                }
                "/shop.v1.Orders/Negotiate" => {
                    grpc(ProstCodec::default()).streaming(Negotiate, request).await
                }
                path => Status::unimplemented(format!("no method {path}")).into_http(),
            })
        })
    }
}

/// Answers are compressed if the client understands it.
fn grpc<C: tonic::codec::Codec>(codec: C) -> Grpc<C> {
    Grpc::new(codec)
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
}

/// A name of a status is that of the answer.
fn status(name: &str) -> Option<Status> {
    let details = || ErrorDetails::with_bad_request_violation("customer_name", "not known");
    let code = match name {
        "NOT_FOUND" => Code::NotFound,
        "RESOURCE_EXHAUSTED" => Code::ResourceExhausted,
        "DETAILS" => {
            let code = Code::InvalidArgument;
            return Some(Status::with_error_details(code, "no such customer", details()));
        }
        _ => return None,
    };
    Some(Status::new(code, format!("no order of {name}")))
}

struct Place;

impl UnaryService<Order> for Place {
    type Response = Receipt;
    type Future = Ready<Result<Response<Receipt>, Status>>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        let failed = status(&request.get_ref().customer_name);
        ready(match failed {
            Some(status) => Err(status),
            None => Ok(Response::new(Receipt { text: "thanks".to_owned() })),
        })
    }
}

struct Import;

impl ClientStreamingService<Order> for Import {
    type Response = Receipt;
    type Future = BoxFuture<Response<Receipt>, Status>;

    fn call(&mut self, request: Request<Streaming<Order>>) -> Self::Future {
        Box::pin(async move {
            let (mut orders, mut count) = (request.into_inner(), 0);
            while let Some(order) = orders.message().await? {
                if let Some(status) = status(&order.customer_name) {
                    return Err(status);
                }
                count += 1;
            }
            Ok(Response::new(Receipt { text: format!("{count}") }))
        })
    }
}

type Answers<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

struct Watch;

impl ServerStreamingService<()> for Watch {
    type Response = Order;
    type ResponseStream = Answers<Order>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let order = |number| Ok(Order { customer_name: format!("customer {number}") });
        ready(Ok(Response::new(Box::pin(iter((0..WATCHED).map(order))))))
    }
}

struct Negotiate;

impl StreamingService<Order> for Negotiate {
    type Response = Receipt;
    type ResponseStream = Answers<Receipt>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Order>>) -> Self::Future {
        let answers = request.into_inner().map(|order| {
            let name = order?.customer_name;
            match status(&name) {
                Some(status) => Err(status),
                None => Ok(Receipt { text: name }),
            }
        });
        ready(Ok(Response::new(Box::pin(answers))))
    }
}

//! The proxy between many clients and a server made of hyper, and clients that leave.
#![allow(clippy::unwrap_used)]

use crate::support::{self, LIMIT, Origin, connect, get, proxy, read_head};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Gives back what it was sent, with the path before it.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut all = request.uri().path().as_bytes().to_vec();
    all.extend(request.into_body().collect().await.unwrap().to_bytes());
    Ok(Response::new(Full::new(all.into())))
}

fn server(runtime: &tokio::runtime::Runtime) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service_fn(echo)));
        }
    });
    address
}

/// One request with a body on a connection that goes on, and its answer's body.
fn exchange(stream: &mut BufReader<TcpStream>, head: &str, body: &[u8]) -> Vec<u8> {
    stream.get_mut().write_all(head.as_bytes()).unwrap();
    stream.get_mut().write_all(body).unwrap();
    let (mut length, mut line) = (0, String::new());
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn many_clients_at_once_get_each_its_own_answers() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (server, proxy) = (server(&runtime), proxy(|_| {}));
    let clients: Vec<_> = (0..16)
        .map(|client: usize| {
            let there = proxy.address;
            std::thread::spawn(move || {
                let mut stream = BufReader::new(connect(there));
                for n in 0..40 {
                    let body = vec![(client * 40 + n) as u8; (client * 7919 + n * 104_729) % 200_000];
                    let url = format!("http://{server}/{client}/{n}");
                    let first = format!("POST {url} HTTP/1.1\r\nHost: {server}\r\n");
                    let (head, sent) = match n % 2 {
                        0 => (format!("{first}Content-Length: {}\r\n\r\n", body.len()), body.clone()),
                        _ => {
                            let mut chunks = format!("{:x}\r\n", body.len().max(1)).into_bytes();
                            chunks.extend(if body.is_empty() { b"?" } else { &body[..] });
                            chunks.extend(b"\r\n0\r\n\r\n");
                            (format!("{first}Transfer-Encoding: chunked\r\n\r\n"), chunks)
                        }
                    };
                    let answer = exchange(&mut stream, &head, &sent);
                    let path = format!("/{client}/{n}");
                    assert!(answer.starts_with(path.as_bytes()), "{client}/{n} got another one's answer");
                    if !body.is_empty() {
                        assert!(answer[path.len()..] == body, "{client}/{n}: another body");
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(proxy.proxy.stats().requests, 16 * 40);
}

#[test]
fn a_client_that_leaves_ends_what_it_asked_for() {
    let (sender, ended) = mpsc::channel();
    let origin = Origin::start(move |_, _, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n").unwrap();
        while stream.write_all(&[7; 65536]).is_ok() {}
        let _ = sender.send(());
        false
    });
    let proxy = proxy(|_| {});
    let mut client = connect(proxy.address);
    client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
    read_head(&mut client).unwrap();
    drop(client);
    ended.recv_timeout(LIMIT).unwrap();
    let end = Instant::now() + LIMIT;
    while proxy.proxy.stats().connections > 0 {
        assert!(Instant::now() < end, "{:?}", proxy.proxy.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_proxy_that_stops_ends_all_connections() {
    let is_reading = Arc::new(AtomicBool::new(false));
    let reading = Arc::clone(&is_reading);
    let origin = Origin::start(move |_, _, stream| {
        reading.store(true, Ordering::Relaxed);
        // Until the proxy hangs up.
        let _ = stream.read(&mut [0]);
        false
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let other = proxy(|_| {});
    let serving = other.proxy.clone();
    let task = runtime.spawn(async move { serving.serve(listener).await });
    let mut client = connect(address);
    client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
    let end = Instant::now() + LIMIT;
    while !is_reading.load(Ordering::Relaxed) {
        assert!(Instant::now() < end, "nothing is asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    task.abort();
    assert_eq!(support::rest(&mut client), "");
}

//! Questions to control's HTTP, as anybody may ask them: one GET, one JSON answer. Nothing is kept open.

use crate::failure::{During, Failure};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long control may take. It answers from memory, but the machine may be busy with much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// The status and the body.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>), Failure> {
    let what = || format!("ask control for {path}");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).during(what)?;
    stream.set_read_timeout(Some(PATIENCE)).during(what)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).during(what)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).during(what)?;
    parse(&answer).ok_or_else(|| Failure::failed(format!("{}: it is no HTTP answer", what())))
}

/// The body as JSON.
pub fn json(address: SocketAddr, path: &str) -> Result<Value, Failure> {
    match get(address, path)? {
        (200, body) => serde_json::from_slice(&body).during(|| format!("control's answer to {path}")),
        (status, body) => {
            let text = String::from_utf8_lossy(&body).trim().to_owned();
            Err(Failure::failed(format!("control answers {path} with {status}: {text}")))
        }
    }
}

/// Status and body of a whole answer.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let head_end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let body = &answer[head_end + 4..];
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Some((status, if chunked { unchunk(body)? } else { body.to_vec() }))
}

fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?.split(';').next()?.trim(), 16).ok()?;
        let data = body.get(end + 2..)?;
        if size == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(data.get(..size)?);
        body = data.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_in_chunks() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(parse(whole), Some((200, b"{}".to_vec())));
        let chunks = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse(chunks), Some((404, b"abcde".to_vec())));
        for wrong in [
            &b""[..],
            b"HTTP/1.1 200",
            b"hello\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc",
        ] {
            assert_eq!(parse(wrong), None);
        }
    }
}

//! Heads and bodies as the two sides of the simulation read them: apart from the proxy's own readers,
//! and trusting nothing that they would.

/// A head, its lines split.
pub(crate) struct Head {
    /// The first line.
    pub(crate) line: String,
    headers: Vec<(String, String)>,
}

/// How a body is delimited.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    Counted(u64),
    Chunked,
    UntilEnd,
}

impl Head {
    /// Takes the head off the front of `inbox`, if it is complete.
    pub(crate) fn take(inbox: &mut Vec<u8>) -> Option<Head> {
        let end = inbox.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(inbox.get(..end).unwrap_or_default()).into_owned();
        inbox.drain(..end + 4);
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some(Head { line, headers: lines.filter_map(header).collect() })
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// How often a header is there.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(other, _)| other == name).count()
    }

    /// The status of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// How its body is delimited; for a request, none is none.
    pub(crate) fn framing(&self, request: bool) -> Result<Framing, String> {
        let (lengths, codings) = (self.count("content-length"), self.count("transfer-encoding"));
        if lengths + codings > 1 {
            return Err(format!("{lengths} lengths and {codings} codings in {}", self.line));
        }
        if codings == 1 {
            return Ok(Framing::Chunked);
        }
        match self.value("content-length") {
            Some(length) => length.parse().map(Framing::Counted).map_err(|_| length.to_owned()),
            None if request => Ok(Framing::Counted(0)),
            None => Ok(Framing::UntilEnd),
        }
    }
}

/// A body being read.
pub(crate) struct Body {
    framing: Framing,
    /// Bytes of it so far.
    pub(crate) got: u64,
    /// Bytes left of the current chunk.
    chunk: u64,
    pub(crate) done: bool,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Body {
        Body { framing, got: 0, chunk: 0, done: framing == Framing::Counted(0) }
    }

    pub(crate) fn is_until_end(&self) -> bool {
        self.framing == Framing::UntilEnd
    }

    /// Takes what is of it off the front of `inbox`; an error is no body at all.
    pub(crate) fn take(&mut self, inbox: &mut Vec<u8>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        while !self.done && !inbox.is_empty() {
            let room = match self.framing {
                Framing::UntilEnd => u64::MAX,
                Framing::Counted(length) => length - self.got,
                Framing::Chunked if self.chunk > 0 => self.chunk,
                Framing::Chunked => match self.next_chunk(inbox)? {
                    true => continue,
                    false => return Ok(out),
                },
            };
            let take = usize::try_from(room).unwrap_or(usize::MAX).min(inbox.len());
            out.extend(inbox.drain(..take));
            self.got += take as u64;
            match self.framing {
                Framing::Counted(length) => self.done = self.got == length,
                Framing::Chunked => self.chunk -= take as u64,
                Framing::UntilEnd => {}
            }
        }
        Ok(out)
    }

    /// Reads the line before the next chunk; false while it is incomplete. The line end after a chunk
    /// is read with the next one.
    fn next_chunk(&mut self, inbox: &mut Vec<u8>) -> Result<bool, String> {
        let skip = if inbox.starts_with(b"\r\n") { 2 } else { 0 };
        let rest = inbox.get(skip..).unwrap_or_default();
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(false) };
        let line = String::from_utf8_lossy(rest.get(..end).unwrap_or_default()).into_owned();
        let size = u64::from_str_radix(&line, 16).map_err(|_| format!("{line:?} is no chunk"))?;
        if size == 0 {
            if rest.len() < end + 4 {
                return Ok(false);
            }
            self.done = true;
            inbox.drain(..skip + end + 4);
            return Ok(true);
        }
        self.chunk = size;
        inbox.drain(..skip + end + 2);
        Ok(true)
    }
}

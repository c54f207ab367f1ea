//! Which routes fit a request, and in which order, by the rules of uWebSockets: of the routes of a method text is
//! preferred to `:parameters` and those to a final `*`; routes of any method come last; a handler may pass a
//! request on to the next one.

/// A route, as an index of the program's.
pub(crate) type Route = u32;

/// Where in the path a parameter is: begin and end.
pub(crate) type Span = (u32, u32);

/// The routes of one host.
#[derive(Clone, Default, Debug)]
pub(crate) struct Router {
    /// Those of each method, in the order in which methods were first used; those of any method have none.
    methods: Vec<(Option<Box<str>>, Node)>,
}

#[derive(Clone, Default, Debug)]
struct Node {
    /// In the order in which they are tried.
    children: Vec<(Segment, Node)>,
    /// Routes that end here.
    routes: Vec<Route>,
    /// How many of them, counted from the first, upgrade connections.
    upgrades: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Segment {
    Text(Box<str>),
    Parameter,
    Rest,
}

impl Segment {
    fn of(text: &str) -> Segment {
        match text.as_bytes().first() {
            Some(b':') => Segment::Parameter,
            Some(b'*') => Segment::Rest,
            _ => Segment::Text(text.into()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Segment::Text(_) => 0,
            Segment::Parameter => 1,
            Segment::Rest => 2,
        }
    }
}

/// The segments of a pattern: what is between slashes, after the first character, which uWebSockets takes for a slash.
fn segments(pattern: &str) -> impl Iterator<Item = &str> {
    let mut characters = pattern.chars();
    characters.next();
    characters.as_str().split('/')
}

impl Router {
    /// Adds a route for a method in capitals, or for any. It replaces one of the same pattern, unless that has parameters:
    /// those are tried in the order in which they are added. Routes that upgrade connections come first.
    pub(crate) fn add(
        &mut self,
        method: Option<&str>,
        pattern: &str,
        route: Route,
        upgrades: bool,
    ) {
        let known = self.methods.iter().position(|(own, _)| own.as_deref() == method);
        let at = known.unwrap_or_else(|| {
            self.methods.push((method.map(Into::into), Node::default()));
            self.methods.len() - 1
        });
        let Some((_, mut node)) = self.methods.get_mut(at).map(|(name, node)| (name, node)) else {
            return;
        };
        for text in segments(pattern) {
            let segment = Segment::of(text);
            let at = match node.children.iter().position(|(own, _)| *own == segment) {
                Some(at) => at,
                None => {
                    let rank = segment.rank();
                    let at = node.children.partition_point(|(own, _)| own.rank() <= rank);
                    node.children.insert(at, (segment, Node::default()));
                    at
                }
            };
            let Some((_, child)) = node.children.get_mut(at) else { return };
            node = child;
        }
        let has_parameters = segments(pattern).any(|text| Segment::of(text) == Segment::Parameter);
        let end = if upgrades { node.upgrades } else { node.routes.len() };
        let known = if upgrades { end > 0 } else { end > node.upgrades };
        match node.routes.get_mut(end.wrapping_sub(1)) {
            Some(last) if known && !has_parameters => *last = route,
            _ => {
                node.routes.insert(end, route);
                node.upgrades += usize::from(upgrades);
            }
        }
    }

    /// The route that is tried after `skip` others, with its parameters in `spans`.
    pub(crate) fn find(
        &self,
        method: &str,
        path: &str,
        skip: usize,
        spans: &mut Vec<Span>,
    ) -> Option<Route> {
        let mut left = skip;
        let own = |name: &Option<Box<str>>| name.as_deref() == Some(method);
        let of_method = self.methods.iter().find(|(name, _)| own(name));
        let of_any = self.methods.iter().find(|(name, _)| name.is_none());
        of_method.into_iter().chain(of_any).find_map(|(_, node)| {
            spans.clear();
            let from = usize::from(path.starts_with('/'));
            node.find(path, Some(from), &mut left, spans)
        })
    }
}

impl Node {
    /// `from` is where the next segment begins; `None` after the last one.
    fn find(
        &self,
        path: &str,
        from: Option<usize>,
        skip: &mut usize,
        spans: &mut Vec<Span>,
    ) -> Option<Route> {
        let Some(from) = from else { return self.end(skip) };
        let rest = path.get(from..).unwrap_or_default();
        let length = rest.find('/').unwrap_or(rest.len());
        let segment = rest.get(..length).unwrap_or_default();
        let next = (length < rest.len()).then_some(from + length + 1);
        for (own, child) in &self.children {
            let found = match own {
                Segment::Text(text) if **text == *segment => child.find(path, next, skip, spans),
                Segment::Parameter if !segment.is_empty() => {
                    spans.push((from as u32, (from + length) as u32));
                    let found = child.find(path, next, skip, spans);
                    if found.is_none() {
                        spans.pop();
                    }
                    found
                }
                Segment::Rest => child.end(skip),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn end(&self, skip: &mut usize) -> Option<Route> {
        let found = self.routes.get(*skip).copied();
        *skip = skip.saturating_sub(self.routes.len());
        found
    }
}

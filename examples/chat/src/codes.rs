//! The codes of answers, with gowebsocket's texts.

/// What an answer says about its request: `code` on the wire.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Code {
    Ok = 200,
    NotLoggedIn = 1000,
    InvalidParameter = 1001,
    InvalidUserId = 1002,
    Unauthorized = 1003,
    OperationFailed = 1009,
    UnknownCommand = 1010,
}

impl Code {
    /// `codeMsg` on the wire.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Code::Ok => "Success",
            Code::NotLoggedIn => "未登录",
            Code::InvalidParameter => "参数不合法",
            Code::InvalidUserId => "非法的用户ID",
            Code::Unauthorized => "未授权",
            Code::OperationFailed => "操作失败",
            Code::UnknownCommand => "路由不存在",
        }
    }
}

import WebSocket from './ws.js';

export default WebSocket;
export const { WebSocketServer, Server } = WebSocket;
export { WebSocket };

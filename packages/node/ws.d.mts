import { WebSocket } from './ws.js';

export * from './ws.js';
export default WebSocket;

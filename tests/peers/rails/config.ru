# Rails' Action Cable on Puma, as an oracle: what it says, ours is held against (tests/oracle.rs).
#
# Not an example of how to run Rails. Its worker pool and its event loop share one thread here: with
# more, two commands of one socket may be carried out in the wrong order, and a comparison would
# compare races.

require "logger"
require "action_cable"

# Whoever brings a token is refused, since no key is known here; all others may come in.
class Visitor < ActionCable::Connection::Base
  def connect
    reject_unauthorized_connection if request.params["jid"]
  end
end

# A stream of any name, and one action that answers.
class NewsChannel < ActionCable::Channel::Base
  def subscribed
    name = params["stream_name"]
    name.present? ? stream_from(name) : reject
  end

  def echo(data)
    transmit(data["text"])
  end
end

server = ActionCable.server
server.config.cable = { "adapter" => "async" }
server.config.logger = Logger.new(nil)
server.config.connection_class = -> { Visitor }
# A client that is no browser names no origin.
server.config.allowed_request_origins = [nil, "https://friend.example"]
one_thread = Concurrent::SingleThreadExecutor.new
[server.worker_pool, server.event_loop].each do |pool|
  pool.instance_variable_set(:@executor, one_thread)
end

done = ->(status) { [status, { "Content-Type" => "text/plain" }, []] }

map("/cable") { run server }

# POST /publish?stream=NAME with JSON as its body.
map "/publish" do
  run(lambda do |env|
    request = Rack::Request.new(env)
    server.broadcast(request.params["stream"], ActiveSupport::JSON.decode(request.body.read))
    done.call(204)
  end)
end

map "/restart" do
  run(lambda do |_env|
    server.restart
    done.call(204)
  end)
end

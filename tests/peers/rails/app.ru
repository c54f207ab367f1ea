# An application of Rails 6.1 with a session, a connection and channels, all of Rails. Browsers log in here; their
# sockets are at `standfast serve`, which calls /_anycable (rpc.rb) and gets broadcasts by the adapter of examples/rails.
# usage: CABLE_SECRET=SECRET puma app.ru

require "action_controller/railtie"
require "action_cable/engine"
require_relative "rpc"

$LOAD_PATH.unshift(File.expand_path("../../../examples/rails/lib", __dir__))
SECRET = ENV.fetch("CABLE_SECRET")
# What callbacks were called with: tests read it.
NOTED = Queue.new

# As a record with a GlobalID.
User = Struct.new(:name) do
  def to_gid_param = "user-#{name}"
end

class SessionsController < ActionController::Base
  def create
    session[:user] = params[:user]
    head :no_content
  end
end

class Visitor < ActionCable::Connection::Base
  identified_by :current_user, :page

  # How `User`s come back from JSON.
  def self.locate(value) = User.new(value["name"])

  def connect
    user = request.session[:user]
    reject_unauthorized_connection unless user && cookies.encrypted[:_app_session]["user"] == user
    self.current_user = User.new(user)
    self.page = request.params["page"]
    request.session[:calls] = 0
  end

  def calls = request.session[:calls] += 1

  def disconnect
    NOTED << "#{current_user.name} left #{page}"
  end
end

class RoomChannel < ActionCable::Channel::Base
  after_subscribe { NOTED << "#{current_user.name} after_subscribe" unless subscription_rejected? }

  def subscribed
    return reject if params[:room] == "locked"

    raise "no such room" if params[:room] == "nowhere"

    @said = 0
    stream_from "room:#{params[:room]}"
    stream_for current_user
    transmit({ hello: current_user.name, page: page })
  end

  def unsubscribed
    NOTED << "#{current_user.name} unsubscribed from #{params[:room]} after #{@said}"
  end

  # A broadcast in the middle of a call.
  def speak(data)
    @said += 1
    connection.calls
    ActionCable.server.broadcast("room:#{params[:room]}", { text: data["text"], by: current_user.name, number: @said })
  end

  def count
    transmit({ said: @said, calls: connection.calls })
  end

  # A message without an action.
  def receive(data)
    transmit({ received: data })
  end

  def mute
    stop_stream_from "room:#{params[:room]}"
    transmit({ muted: true })
  end

  def unmute
    stop_all_streams
    stream_from "room:#{params[:room]}"
    transmit({ muted: false })
  end

  def leave
    connection.close(reason: "left", reconnect: false)
  end
end

class CableApp < Rails::Application
  config.eager_load = false
  config.logger = Logger.new(nil)
  config.secret_key_base = SECRET
  config.hosts.clear
  config.session_store :cookie_store, key: "_app_session"
  routes.append { post "/login", to: "sessions#create" }
end
CableApp.initialize!

done = ->(status, text = "") { [status, { "Content-Type" => "text/plain" }, [text]] }

map("/_anycable") { run Rpc.new(Visitor, SECRET) }

# POST /use?url=URL: where broadcasts go.
map "/use" do
  run(lambda do |env|
    url = Rack::Request.new(env).params["url"]
    ActionCable.server.config.cable = { "adapter" => "http_broadcast", "url" => url, "secret" => SECRET }
    done.call(204)
  end)
end

# POST /notify?user=NAME with JSON as its body: to whatever this user's channels stream.
map "/notify" do
  run(lambda do |env|
    request = Rack::Request.new(env)
    RoomChannel.broadcast_to(User.new(request.params["user"]), ActiveSupport::JSON.decode(request.body.read))
    done.call(204)
  end)
end

# GET /noted: the callbacks since the last time, a line each.
map "/noted" do
  run(lambda do |_env|
    lines = []
    lines << NOTED.pop(true) until NOTED.empty?
    done.call(200, lines.join("\n"))
  end)
end

run CableApp

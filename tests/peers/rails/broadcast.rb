# Broadcasts as a Rails app does, through the adapter of examples/rails: what it says is what clients hear, and with
# another secret nobody listens to it.
# usage: ruby broadcast.rb URL SECRET
require "logger"
require "action_cable"
require "active_support/core_ext/string/inflections"

$LOAD_PATH.unshift(File.expand_path("../../../examples/rails/lib", __dir__))
url, secret = ARGV

def server(url, secret)
  config = ActionCable::Server::Configuration.new
  config.cable = { "adapter" => "http_broadcast", "url" => url, "secret" => secret }
  config.logger = Logger.new(nil)
  ActionCable::Server::Base.new(config: config)
end

server(url, secret).broadcast("news", { text: "héllo ✓", n: 1 })
puts "ok broadcast"

begin
  server(url, "another").broadcast("news", "x")
rescue RuntimeError => error
  raise unless error.message.include?("401")

  puts "ok refused"
end

# Broadcasts and disconnects as a Rails app with `adapter: redis` does, with Rails' own adapter and nothing of ours.
# usage: ruby redis.rb URL PREFIX (or an empty one)
require "base64"
require "logger"
require "action_cable"
require "active_support/core_ext/hash/indifferent_access"
require "active_support/core_ext/object/blank"
require "active_support/core_ext/string/inflections"

url, prefix = ARGV

# As a record with a GlobalID.
User = Struct.new(:id) do
  def to_gid_param = Base64.urlsafe_encode64("gid://app/User/#{id}", padding: false)
end

class Visitor < ActionCable::Connection::Base
  identified_by :current_user
end

class RoomChannel < ActionCable::Channel::Base
end

config = ActionCable::Server::Configuration.new
# As Rails reads config/cable.yml.
config.cable = { adapter: "redis", url: url, channel_prefix: prefix.presence }.compact.with_indifferent_access
config.connection_class = -> { Visitor }
config.logger = Logger.new(nil)
server = ActionCable::Server::Base.new(config: config)
ActionCable.instance_variable_set(:@server, server)

server.broadcast("news", { text: "héllo ✓", n: 1 })
server.broadcast("news", "plain")
RoomChannel.broadcast_to(User.new(7), [1, 2])
puts "ok broadcast"
server.remote_connections.where(current_user: User.new(1)).disconnect
puts "ok disconnect"

# Publishes the broadcasts of a Rails app to standfast instead of Redis. The app's broadcasts do not change; clients
# connect to standfast. Put this file into the app's lib/, at the same path as here, and set in config/cable.yml:
#
#   production:
#     adapter: http_broadcast
#     url: http://127.0.0.1:8090/_broadcast
#     secret: <%= ENV["CABLE_SECRET"] %> # as in `standfast serve --secret`; or its --broadcast-key as `key`
#
# With only `standfast serve --turbo-secret`, on one machine, neither is needed.

require "json"
require "net/http"
require "openssl"

module ActionCable
  module SubscriptionAdapter
    class HttpBroadcast < Base
      def initialize(*)
        super
        config = server.config.cable.transform_keys(&:to_s)
        @url = URI(config.fetch("url", "http://127.0.0.1:8090/_broadcast"))
        @headers = { "Content-Type" => "application/json" }
        key = config["key"]
        key ||= OpenSSL::HMAC.hexdigest("SHA256", config["secret"], "broadcast-cable") if config["secret"]
        @headers["Authorization"] = "Bearer #{key}" if key
      end

      def broadcast(stream, payload)
        answer = Net::HTTP.post(@url, { stream: stream, data: payload }.to_json, @headers)
        return if answer.is_a?(Net::HTTPSuccess)

        raise "broadcast to #{@url} failed: #{answer.code} #{answer.body}"
      end

      def subscribe(*)
        raise NotImplementedError, "clients of this app connect to standfast: set config.action_cable.url"
      end

      def unsubscribe(*) = nil

      def shutdown = nil
    end
  end
end

# Broadcasts of a Rails app to standfast, in place of Action Cable's Redis: what the app broadcasts stays as it
# is, clients connect to standfast. Put this file into the app's lib/, at the path it has here, and write into
# config/cable.yml:
#
#   production:
#     adapter: http_broadcast
#     url: http://127.0.0.1:8090/_broadcast
#     secret: <%= ENV["CABLE_SECRET"] %> # that of `standfast serve --secret`; or its --broadcast-key as `key`
#
# With `standfast serve --turbo-secret` alone, on one machine, it needs neither.

require "json"
require "net/http"
require "openssl"

module ActionCable
  module SubscriptionAdapter
    class HttpBroadcast < Base
      def initialize(*)
        super
        said = server.config.cable.transform_keys(&:to_s)
        @url = URI(said.fetch("url", "http://127.0.0.1:8090/_broadcast"))
        @headers = { "Content-Type" => "application/json" }
        key = said["key"]
        key ||= OpenSSL::HMAC.hexdigest("SHA256", said["secret"], "broadcast-cable") if said["secret"]
        @headers["Authorization"] = "Bearer #{key}" if key
      end

      def broadcast(stream, payload)
        answer = Net::HTTP.post(@url, { stream: stream, data: payload }.to_json, @headers)
        return if answer.is_a?(Net::HTTPSuccess)

        raise "#{@url} did not take a broadcast: #{answer.code} #{answer.body}"
      end

      def subscribe(*)
        raise NotImplementedError, "clients of this app subscribe at standfast: set config.action_cable.url"
      end

      def unsubscribe(*) = nil

      def shutdown = nil
    end
  end
end

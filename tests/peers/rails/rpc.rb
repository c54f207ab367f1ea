# HTTP RPC for Rails' Action Cable: a Rack app that lets an application's own connection and channels answer the calls
# of `standfast serve --rpc-host`. A connection lives for one call: what identifies it, its session and its channels'
# instance variables go back with the answer, and come again with the next call.
#
# For tests: it knows Rails 6.1, and only values that are JSON survive between two calls. An app uses anycable-rails.

require "active_support/security_utils"
require "openssl"
require "rack/mock"

class Rpc
  SUCCESS = 1
  FAILURE = 2
  ERROR = 0

  # A connection without a socket: what it sends is collected.
  module Connection
    attr_reader :transmissions, :closed

    def transmit(message)
      (@transmissions ||= []) << encode(message)
    end

    def close(reason: nil, reconnect: true)
      transmit(type: "disconnect", reason: reason, reconnect: reconnect)
      @closed = true
    end

    def open
      connect if respond_to?(:connect)
      send_welcome_message
      true
    rescue ActionCable::Connection::Authorization::UnauthorizedError
      close(reason: "unauthorized", reconnect: false)
      false
    end

    def identity
      identifiers.to_h { |name| [name, public_send(name)] }.to_json
    end

    def identity=(text)
      ActiveSupport::JSON.decode(text).each do |name, value|
        public_send("#{name}=", value.is_a?(Hash) ? self.class.locate(value) : value)
      end
    end

    def kept_session
      session = request.session.to_hash.except("session_id", "_csrf_token")
      session.empty? ? {} : { session: session.to_json }
    end

    def kept_session=(text)
      ActiveSupport::JSON.decode(text).each { |key, value| request.session[key] = value }
    end

    # As if a client had subscribed, some calls ago.
    def restore(identifier, state)
      params = ActiveSupport::JSON.decode(identifier).with_indifferent_access
      channel = params[:channel].constantize.new(self, identifier, params)
      channel.state = state
      subscriptions.instance_variable_get(:@subscriptions)[identifier] = channel
    end
  end

  # A channel whose streams are the server's.
  module Channel
    OWN = %i[@connection @identifier @params @defer_subscription_confirmation_counter @reject_subscription
             @subscription_confirmation_sent @active_periodic_timers @_streams @changes].freeze

    def changes = @changes ||= { streams: [], stopped_streams: [], stop_streams: false }

    def stream_from(broadcasting, callback = nil, coder: nil, &block)
      raise ArgumentError, "the server does not call blocks of stream_from" if callback || coder || block

      changes[:stopped_streams].delete(broadcasting.to_s)
      changes[:streams] |= [broadcasting.to_s]
    end

    def stop_stream_from(broadcasting)
      changes[:streams].delete(broadcasting.to_s)
      changes[:stopped_streams] |= [broadcasting.to_s]
    end

    def stop_all_streams
      @changes = { streams: [], stopped_streams: [], stop_streams: true }
    end

    def rejected? = !!@reject_subscription

    def state
      names = instance_variables - OWN
      names.to_h { |name| [name.to_s, instance_variable_get(name).to_json] }
    end

    def state=(values)
      values.each { |name, value| instance_variable_set(name, ActiveSupport::JSON.decode(value)) }
    end
  end

  def initialize(connection_class, secret)
    @connection_class = Class.new(connection_class) { prepend Connection }
    ActionCable::Channel::Base.prepend(Channel)
    @key = OpenSSL::HMAC.hexdigest("SHA256", secret, "rpc-cable")
  end

  def call(rack)
    given = rack["HTTP_AUTHORIZATION"].to_s
    return [401, {}, []] unless ActiveSupport::SecurityUtils.secure_compare(given, "Bearer #{@key}")

    body = ActiveSupport::JSON.decode(rack["rack.input"].read)
    answer =
      begin
        with_connection(body) { |connection| public_send(rack["PATH_INFO"].delete_prefix("/"), connection, body) }
      rescue StandardError => error
        { status: ERROR, error_msg: "#{error.class}: #{error.message}" }
      end
    [200, { "Content-Type" => "application/json" }, [answer.to_json]]
  end

  def connect(connection, _body)
    admitted = connection.open
    answer = { status: admitted ? SUCCESS : FAILURE, transmissions: connection.transmissions }
    return answer unless admitted

    answer.merge(identifiers: connection.identity, env: { cstate: connection.kept_session })
  end

  def command(connection, body)
    identifier = body["identifier"]
    if body["command"] == "subscribe"
      connection.subscriptions.add(body)
      channel = connection.subscriptions.send(:subscriptions)[identifier] || Rejected
    else
      channel = connection.restore(identifier, body.dig("env", "istate") || {})
      body["command"] == "message" ? connection.subscriptions.perform_action(body) : connection.subscriptions.remove(body)
    end
    {
      status: channel.rejected? ? FAILURE : SUCCESS,
      transmissions: connection.transmissions.to_a,
      disconnect: connection.closed,
      env: { cstate: connection.kept_session, istate: channel.state },
      **channel.changes
    }
  end

  def disconnect(connection, body)
    states = body.dig("env", "istate") || {}
    body["subscriptions"].to_a.each do |identifier|
      connection.restore(identifier, ActiveSupport::JSON.decode(states[identifier] || "{}"))
    end
    connection.send(:handle_close)
    { status: SUCCESS }
  end

  # A channel that a `subscribed` has rejected is not among the subscriptions any more.
  module Rejected
    def self.rejected? = true
    def self.state = {}
    def self.changes = {}
  end

  private

  # With the session of the client's cookie, as the app's middleware loads it.
  def with_connection(body)
    given = body["env"]
    headers = (given["headers"] || {}).to_h do |name, value|
      [name == "REMOTE_ADDR" ? name : "HTTP_#{name.tr("-", "_").upcase}", value]
    end
    rack = Rails.application.env_config.merge(Rack::MockRequest.env_for(given["url"], headers))
    answer = nil
    inner = lambda do |env|
      connection = @connection_class.new(ActionCable.server, env)
      session = given.dig("cstate", "session")
      connection.kept_session = session if session
      identity = body["connection_identifiers"] || body["identifiers"]
      connection.identity = identity if identity
      answer = yield connection
      [204, {}, []]
    end
    config = Rails.application.config
    config.session_store.new(inner, config.session_options).call(rack)
    answer
  end
end

//! Subscribe and publish across workers, without brokers or protocols.

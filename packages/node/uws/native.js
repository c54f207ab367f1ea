'use strict';

// The addon for this platform.
module.exports = require('../lib/addon');

'use strict';

// Strings and integers that the threads of a process share.

const native = require('./native');

module.exports = {
  getString: (key, collection) => native.get_string(key, collection),
  setString: (key, value, collection) => native.set_string(key, value, collection),
  getStringKeys: (collection) => native.get_string_keys(collection),
  deleteString: (key, collection) => native.delete_string(key, collection),
  deleteStringCollection: (collection) => native.delete_string_collection(collection),
  getInteger: (key, collection) => native.get_integer(key, collection),
  setInteger: (key, value, collection) => native.set_integer(key, value, collection),
  incInteger: (key, change, collection) => native.inc_integer(key, change, collection),
  getIntegerKeys: (collection) => native.get_integer_keys(collection),
  deleteInteger: (key, collection) => native.delete_integer(key, collection),
  deleteIntegerCollection: (collection) => native.delete_integer_collection(collection),
  lock: () => native.lock(),
  unlock: () => native.unlock(),
};

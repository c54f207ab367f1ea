// The server of scenarios/go-stress-http.toml: a hello world of Go's net/http, on 127.0.0.1:8088 or the address given.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	address := "127.0.0.1:8088"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		io.WriteString(answer, "Hello, World!")
	})
	log.Fatal(http.ListenAndServe(address, nil))
}

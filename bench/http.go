// An HTTP server of Go's net/http: http PORT. It answers each request with 20 octets.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "twenty octets, once\n") })
	fmt.Println(http.ListenAndServe(":"+os.Args[1], nil))
}

"""The rules of logs, a file a family: signs that lines have, and the causes that they make. Data only; `catalogue` puts
them together."""

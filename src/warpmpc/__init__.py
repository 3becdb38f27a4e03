"""warpmpc"""
